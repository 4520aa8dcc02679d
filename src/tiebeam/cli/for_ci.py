"""The doctor's findings for CI: SARIF 2.1.0 documents and GitHub workflow commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiebeam.doctor import Finding


@dataclass(frozen=True, slots=True)
class Placed:
    """The findings on one model, and where it is; `unreadable` is the reason when it could not be opened."""

    model: str
    findings: tuple[Finding, ...]
    unreadable: str = ""

    @property
    def file(self) -> str:
        """The file to point at: the config, where most findings live, else the model itself."""
        path = Path(self.model) / "config.json"
        return (path if path.is_file() else Path(self.model)).as_posix()


def github(placed: Placed) -> Iterator[str]:
    """Workflow commands, which GitHub shows as annotations."""
    where = _escape(placed.file, in_property=True)
    if placed.unreadable:
        yield f"::error file={where},title=unreadable::{_escape(placed.unreadable)}"
    for f in placed.findings:
        level = "notice" if f.level == "note" else str(f.level)
        title = _escape(f"{f.code} {f.about.title}", in_property=True)
        yield f"::{level} file={where},title={title}::{_escape(f'{f.evidence}. {f.about.cure}')}"


def _escape(text: str, in_property: bool = False) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text


def sarif(models: list[Placed]) -> dict[str, Any]:
    """One SARIF 2.1.0 document, as code-scanning services read it."""
    from tiebeam._version import __version__
    from tiebeam.doctor import CODES

    used = sorted({f.code for placed in models for f in placed.findings})
    rules = [
        {
            "id": code,
            "shortDescription": {"text": CODES[code].title},
            "fullDescription": {"text": CODES[code].cause},
            "help": {"text": CODES[code].cure, "markdown": CODES[code].page()},
            "defaultConfiguration": {"level": str(CODES[code].severity)},
        }
        for code in used
    ]
    results = [
        {
            "ruleId": f.code,
            "ruleIndex": used.index(f.code),
            "level": str(f.level),
            "message": {"text": f"{f.about.title}: {f.evidence}"},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": placed.file}}}],
        }
        for placed in models
        for f in placed.findings
    ]
    failures = [{"level": "error", "message": {"text": placed.unreadable}} for placed in models if placed.unreadable]
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
