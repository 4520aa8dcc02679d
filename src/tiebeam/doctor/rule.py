"""Rule and Finding: what the doctor can find, and what it found in one model.

A rule is one file in doctor/rules/. It holds the text of a finding, the check that raises it, the fix, and a
function that builds a tiny example which has the finding. A code keeps its meaning once it is published:
TB1xx declaration · TB2xx storage · TB3xx values · TB4xx adapters · TB5xx models in memory · TB6xx quantization ·
TB7xx vocabulary · TB8xx files that a loader would not find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from tiebeam._visible import visible

if TYPE_CHECKING:
    from pathlib import Path

    from tiebeam.doctor.fix import Repair


class Severity(StrEnum):
    """error: some loader gets a wrong model. warning: a likely problem. note: good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def order(self) -> int:
        """Worst first."""
        return list(Severity).index(self)


class Names(NamedTuple):
    """What a fix calls the files of this model, quoted for a shell; the defaults are what the docs print."""

    model: str = "MODEL"
    out: str = "DST"
    base: str = "BASE"
    merged: str = "DST"
    merge: str = "tiebeam merge BASE ADAPTER DST"
    """The command that merges the adapter; empty where it would be refused."""
    rows: str = "ROWS"
    keep: str = ""
    """The matrix to keep, where the two are equal only up to rounding."""
    extend: bool = True
    """Whether `tiebeam extend` takes this model."""
    download: str = ""
    """The command that downloads the model (or the base) first."""

    @classmethod
    def of(cls, model: str, base: str | None = None, remote: bool = False) -> Names:
        """Names for the checkpoint (or adapter) at `model`, with an output beside it. `remote`: the model, or the base
        if there is one, is on the Hub or behind a URL and is downloaded to a directory of its name first."""
        import shlex  # here, as pathlib: a model without findings needs no names
        from pathlib import Path, PurePath

        if remote:
            from tiebeam.checkpoint.download import download_command

            command, there = download_command(base or model)
            names = cls.of(model, there) if base else cls.of(there)
            out, merged = (shlex.quote(PurePath(shlex.split(name)[0]).name) for name in (names.out, names.merged))
            return names._replace(out=out, merged=merged, download=command)
        target = PurePath((base or model).removeprefix("hf://").partition("@")[0].rstrip("/") or "model")
        if target.name in ("", ".."):  # the current directory, or one above: its output is beside it
            target = PurePath(target, "..", Path(target).resolve().name or "model")
        suffix = target.suffix if target.suffix in (".gguf", ".safetensors") else ""
        out, merged = (
            str(Path(target).with_name(name) if "://" not in (base or model) else PurePath(name))
            for name in (
                f"{target.name.removesuffix(suffix)}-{what}{suffix}"
                for what in ("untied" if base else "fixed", "merged")
            )
        )
        return cls(shlex.quote(model), shlex.quote(out), shlex.quote(base or "BASE"), shlex.quote(merged))

    @property
    def fix(self) -> str:
        """The command that applies every fix that loses nothing."""
        return f"tiebeam doctor {self.model} --fix --out {self.out}"


class Step(NamedTuple):
    """One way to fix a finding: a sentence without its full stop, and the command or the Python that does it."""

    text: str
    command: str = ""
    python: str = ""

    def __str__(self) -> str:
        code = self.command or self.python
        return f"{self.text}: `{code}`." if code else f"{self.text}."


class Evidence(NamedTuple):
    """Why a check raises its finding here. `severity` only where it differs from the rule's."""

    text: str
    severity: Severity | None = None
    rows: int | None = None
    """The row count that the fix mentions."""
    keep: str = ""
    """The matrix that the fix keeps, where the two are equal only up to rounding."""
    extend: bool = True
    """Whether `tiebeam extend` takes this model: see doctor/extend_advice.py."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding on one model. `steps` are its fixes with this model's paths filled in; `repair` is the name of the
    change that `doctor --fix` applies, None where a person has to decide."""

    code: str
    severity: Severity
    title: str
    evidence: str
    cause: str
    steps: tuple[Step, ...]
    repair: str | None = None

    @property
    def fix(self) -> str:
        return " ".join(map(str, self.steps))

    def __str__(self) -> str:
        lines = (f"{self.code} {self.severity}: {self.title}", f"  {self.evidence}", f"  fix: {self.fix}")
        return "\n".join(map(visible, lines))

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": str(self.severity),
            "title": self.title,
            "evidence": self.evidence,
            "cause": self.cause,
            "fix": self.fix,
            "repair": self.repair,
            "commands": [step.command for step in self.steps if step.command],
        }


def kind_of(code: str) -> str:
    """What the rule with this code (or file name) examines.

    >>> kind_of("TB405"), kind_of("tb512_x"), kind_of("TB101")
    ('adapter', 'module', 'checkpoint')
    """
    return {"4": "adapter", "5": "module"}.get(code[2], "checkpoint")


def no_fix(examined: Any) -> None:
    """Of a rule whose finding a person has to decide about."""


class Rule(NamedTuple):
    """`check` reads an examined checkpoint, adapter or module (see examined.py) and yields evidence. `fix` returns the
    change that `doctor --fix` makes, or None. `steps` says what a person can do. `example` builds a tiny case: it
    writes a checkpoint or an adapter into the directory and returns its path, or returns a LiveExample."""

    code: str
    severity: Severity
    title: str
    symptoms: str
    cause: str
    detection: str
    check: Callable[[Any], Iterable[Evidence]]
    steps: Callable[[Names], tuple[Step, ...]]
    example: Callable[[Path], Any]
    fix: Callable[[Any], Repair | None] = no_fix
    seen_in: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What it examines: a checkpoint, an adapter or a module."""
        return kind_of(self.code)

    def findings(self, examined: Any, names: Names | Callable[[], Names]) -> Iterable[Finding]:
        """Every finding of this rule on `examined`. `names` may be a function, which is called if there is one."""
        for evidence in self.check(examined):
            names = names if isinstance(names, Names) else names()
            rows = names.rows if evidence.rows is None else str(evidence.rows)
            at = names._replace(rows=rows, keep=evidence.keep, extend=evidence.extend)
            repair = self.fix(examined)
            yield Finding(
                code=self.code,
                severity=evidence.severity or self.severity,
                title=self.title,
                evidence=evidence.text,
                cause=self.cause,
                steps=_after_download(self.steps(at), names.download),
                repair=repair.name if repair else None,
            )

    def page(self) -> str:
        """The page of this finding in docs/findings, in Markdown."""
        fixes = []
        for step in self.steps(Names()):
            code = step.command or step.python
            language = "sh" if step.command else "python"
            fixes.append(f"{step.text}:\n\n```{language}\n{code}\n```" if code else f"{step.text}.")
        parts = [
            f"# {self.code}: {self.title}",
            f"Severity: {self.severity}",
            f"## Symptoms\n\n{self.symptoms}",
            f"## Cause\n\n{self.cause}",
            "## Fix",
            *fixes,
            f"## How it is detected\n\n{self.detection}",
        ]
        if self.seen_in:
            parts.append(f"## Seen in\n\n{', '.join(self.seen_in)}")
        return "\n\n".join(parts) + "\n"


def merge_steps(at: Names, text: str) -> tuple[Step, ...]:
    """The step that merges the adapter, unless the merge would be refused."""
    return (Step(text, at.merge),) if at.merge else ()


def _after_download(steps: tuple[Step, ...], download: str) -> tuple[Step, ...]:
    """The steps, with the download before the first command."""
    first = next((i for i, step in enumerate(steps) if step.command), None)
    if not download or first is None:
        return steps
    return (*steps[:first], Step("Download it first", download), *steps[first:])
