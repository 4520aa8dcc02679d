"""The doctor's findings for CI: SARIF 2.1.0 documents and GitHub workflow commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tiebeam._visible import visible

if TYPE_CHECKING:
    from tiebeam.doctor import Finding


@dataclass(frozen=True, slots=True)
class Located:
    """The findings on one model and its path; `unreadable` is the reason if it could not be opened."""

    model: str
    findings: tuple[Finding, ...]
    unreadable: str = ""

    @property
    def file(self) -> str:
        """The file that an annotation points at: config.json if there is one, else the model."""
        path = Path(self.model) / "config.json"
        return (path if path.is_file() else Path(self.model)).as_posix()


def github(located: Located) -> Iterator[str]:
    """Workflow commands, which GitHub shows as annotations."""
    where = _escape(located.file, in_property=True)
    if located.unreadable:
        yield f"::error file={where},title=unreadable::{_escape(located.unreadable)}"
    for f in located.findings:
        level = "notice" if f.severity == "note" else str(f.severity)
        title = _escape(f"{f.code} {f.title}", in_property=True)
        yield f"::{level} file={where},title={title}::{_escape(f'{f.evidence}. {f.fix}')}"


def _escape(text: str, in_property: bool = False) -> str:
    text = visible(text, keep="\r\n").replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text


def _plain(text: str) -> str:
    """Text of a SARIF message, which services show on a page and search for [links](address)."""
    return visible(text).replace("](", r"]\x28")


def _uri(path: str) -> str:
    return quote(os.fsencode(path))


def sarif(models: list[Located]) -> dict[str, Any]:
    """One SARIF 2.1.0 document for code-scanning services."""
    from tiebeam._version import __version__
    from tiebeam.doctor import RULES
    from tiebeam.doctor.rule import Names

    used = sorted({f.code for located in models for f in located.findings})
    rules = [
        {
            "id": code,
            "shortDescription": {"text": RULES[code].title},
            "fullDescription": {"text": RULES[code].cause},
            "help": {"text": " ".join(map(str, RULES[code].steps(Names()))), "markdown": RULES[code].page()},
            "defaultConfiguration": {"level": str(RULES[code].severity)},
        }
        for code in used
    ]
    results = [
        {
            "ruleId": f.code,
            "ruleIndex": used.index(f.code),
            "level": str(f.severity),
            "message": {"text": _plain(f"{f.title}: {f.evidence}")},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(located.file)}}}],
        }
        for located in models
        for f in located.findings
    ]
    failures = [
        {"level": "error", "message": {"text": _plain(located.unreadable)}} for located in models if located.unreadable
    ]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "tiebeam", "version": __version__, "rules": rules}},
                "results": results,
                "invocations": [{"executionSuccessful": not failures, "toolExecutionNotifications": failures}],
            }
        ],
    }
