"""Diagnose a checkpoint: run every rule over its declaration, storage and values, and predict what loaders do.

A healthy model has no finding above a note.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tiebeam._visible import visible
from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.not_a_model import refuse_lfs_pointers, tokenizer_files
from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.rule import Finding, Names, Severity
from tiebeam.doctor.rules import rules_of
from tiebeam.errors import reader
from tiebeam.inspection import Report, inspect

if TYPE_CHECKING:
    import pandas

    from tiebeam.doctor.loaders import Prediction
    from tiebeam.inspection.row_health import RowHealth


_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The report on a checkpoint, its findings (worst first), and what each loader will do."""

    report: Report
    findings: tuple[Finding, ...]
    loaders: tuple[Prediction, ...]
    rows: RowHealth | None = None
    """The unhealthy rows of both matrices, if they were read."""

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst finding; None if there is none."""
        return self.findings[0].severity if self.findings else None

    def __str__(self) -> str:
        lines = [f"{verdict(self.findings)} · {self.report.model}", f"  {self.report.tie}: {self.report.tie.meaning}"]
        lines += [f"  {line}" for finding in self.findings for line in str(finding).splitlines()]
        lines += [f"  {p.loader}: {p.outcome} ({p.reason})" for p in self.loaders]
        return "\n".join(map(visible, lines))

    def _repr_html_(self) -> str:
        from tiebeam._html import escape

        return f"<pre>{escape(str(self))}</pre>"

    def to_frame(self) -> pandas.DataFrame:
        """One row per finding: code, severity, title, evidence, fix. Needs pandas.

        >>> import tiebeam
        >>> tiebeam.diagnose("merged").to_frame()["code"].tolist()
        ['TB101']
        """
        from tiebeam._frames import frame

        return frame([f.to_dict() for f in self.findings], ("code", "severity", "title", "evidence", "fix"))

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.report.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "loaders": [prediction.to_dict() for prediction in self.loaders],
            **({"rows": self.rows.to_dict()} if self.rows else {}),
        }


@reader
def diagnose(
    source: str | os.PathLike[str] | Checkpoint,
    *,
    embed: str | None = None,
    head: str | None = None,
    rows: bool | None = False,
    loaders: bool = True,
) -> Diagnosis:
    """Everything the doctor reports about a checkpoint.

    `embed` and `head` name the tensors where the architecture is unknown. `rows` also reads every row of both matrices;
    None reads them only where that is quick (a local model in a float type), and reports only rows that matter.
    `loaders=False` does not predict what the loaders do.

        >>> import tiebeam
        >>> tiebeam.diagnose("merged").findings[0].code
        'TB101'
    """
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    refuse_lfs_pointers(checkpoint.files, tokenizer_files(checkpoint.files.names()))
    return diagnosis_of(checkpoint, inspect(checkpoint, embed=embed, head=head), rows, loaders)


def diagnosis_of(
    checkpoint: Checkpoint,
    report: Report,
    rows: bool | None = False,
    loaders: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Diagnosis:
    """The diagnosis of a checkpoint that has been inspected already. `progress` is called with (rules run, rules)."""
    health = None
    if rows or (rows is None and _quick_to_read(checkpoint, report)):
        from tiebeam.inspection.row_health import row_health

        health = row_health(checkpoint, report)
    names = partial(Names.of, report.model, remote=not isinstance(checkpoint.files, LocalFiles))
    findings = run_rules("checkpoint", ExaminedCheckpoint(checkpoint, report, health, bool(rows)), names, progress)
    predicted: tuple[Prediction, ...] = ()
    if loaders:
        from tiebeam.doctor.loaders import predictions

        predicted = predictions(report, checkpoint.config)
    return Diagnosis(report, findings, predicted, health if rows else None)


def _quick_to_read(checkpoint: Checkpoint, report: Report) -> bool:
    """Whether both matrices are on this machine in a float type: about a second per GB."""
    stored = [matrix for matrix in (report.pair.embed, report.pair.head) if matrix is not None]
    return isinstance(checkpoint.files, LocalFiles) and all(matrix.dtype in _FLOATS for matrix in stored)


def run_rules(
    kind: str,
    examined: Any,
    names: Names | Callable[[], Names],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Finding, ...]:
    """The findings of every rule of that kind, worst first."""
    rules, found = rules_of(kind), list[Finding]()
    for done, rule in enumerate(rules.values()):
        progress(done, len(rules))
        found += rule.findings(examined, names)
    return tuple(sorted(found, key=lambda finding: (finding.severity.order, finding.code)))


def verdict(findings: tuple[Finding, ...]) -> str:
    """One phrase: healthy, or how many findings of each severity."""
    counts = [(sum(f.severity is severity for f in findings), severity) for severity in Severity]
    parts = [f"{count} {severity}{'s' if count > 1 else ''}" for count, severity in counts if count]
    if not parts:
        return "healthy: no findings"
    return ", ".join(parts) if findings[0].severity is not Severity.NOTE else f"healthy: {parts[0]}"


examine = diagnose
