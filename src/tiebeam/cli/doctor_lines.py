"""The doctor's reports as text: the verdict on line one, findings with cause and fix, loaders, the next command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.cli import render
from tiebeam.cli.inspect import title, verdict_line
from tiebeam.cli.row_lines import row_lines
from tiebeam.doctor import Diagnosis, Severity
from tiebeam.doctor.adapters import AdapterDiagnosis
from tiebeam.doctor.diagnosis import verdict
from tiebeam.doctor.loaders import UNPREDICTED
from tiebeam.doctor.rule import Names
from tiebeam.doctor.several import Result, Unreadable

if TYPE_CHECKING:
    from tiebeam._text import Line
    from tiebeam.doctor import Finding
    from tiebeam.doctor.fix import FixPlan
    from tiebeam.doctor.loaders import Prediction
    from tiebeam.surgery import Outcome

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "cyan"}
_HEALTHY = "bold green"


def has_error(findings: tuple[Finding, ...]) -> bool:
    return any(finding.severity is Severity.ERROR for finding in findings)


def _style(findings: tuple[Finding, ...]) -> str:
    """The style of a verdict: that of the worst finding; a note does not make a model unhealthy."""
    worst = findings[0].severity if findings else Severity.NOTE
    return _HEALTHY if worst is Severity.NOTE else _STYLES[worst]


def fix_lines(
    planned: FixPlan, outcome: Outcome | None, remaining: tuple[Finding, ...], out: str | None, width: int
) -> Iterator[Line | str]:
    report = planned.diagnosis.report
    if outcome and has_error(remaining):
        codes = ", ".join(dict.fromkeys(f.code for f in remaining if f.severity is Severity.ERROR))
        verdict_text = f"not all fixed: {out} is {outcome.after.tie} and still has {codes}"
    elif outcome:
        verdict_text = f"fixed: {out} is {outcome.after.tie}"
    elif planned.plan:
        verdict_text = "not written; add --out DST to write"
    else:
        verdict_text = "nothing to fix" if not planned.left else "nothing can be fixed without a decision"
    open_findings = remaining if outcome else planned.diagnosis.findings
    yield render.styled((verdict_text, _style(open_findings or planned.left)), f" · {title(report)}")
    yield verdict_line(report)
    for note in planned.notes:
        yield render.wrapped(f"note: {note}", width)
    if planned.plan:
        yield "  changed" if outcome else "  would change"
        for change in planned.plan.changes:
            yield f"    {change}"
    for finding in planned.left:
        if finding.severity is not Severity.NOTE:
            yield ""
            yield from _finding_lines(finding, width)
    if planned.plan and not outcome:
        yield ""
        yield f"  next: {Names.of(report.model).fix}"


def report_lines(result: Result, width: int, accepted: Sequence[str] = ()) -> Iterator[Line | str]:
    if isinstance(result, Unreadable):
        yield render.styled(("cannot be read", "bold red"), f" · {result.model}")
        yield f"  {result.reason}"
        yield ""
        return
    known = isinstance(result, Diagnosis) or result.base is not None
    phrase = (verdict(result.findings) if known else "no verdict without the base", _style(result.findings))
    if accepted:
        new = verdict(result.findings) if result.findings else "no new findings"
        phrase = (f"{new}, accepted {', '.join(accepted)}", phrase[1])
    if isinstance(result, Diagnosis):
        yield render.styled(phrase, f" · {title(result.report)}")
        yield verdict_line(result.report)
        if result.report.vocabulary.rows is not None:
            yield f"  ids and rows {result.report.vocabulary}"
    else:
        yield render.styled(phrase, f" · {result.adapter} · adapter")
        yield from _labelled("touches", str(result.touched), width, indent=2)
        if result.base:
            yield f"  base         {result.base.model}: {result.base.tie}"
        yield from _labelled("merge", result.merge, width, indent=2)
        if result.advice:
            yield from _labelled("by tiebeam", result.advice.sentence, width, indent=2)
    for finding in result.findings:
        yield ""
        yield from _finding_lines(finding, width)
    if isinstance(result, Diagnosis) and result.rows:
        yield ""
        yield from row_lines(result.rows)
    if result.loaders:
        yield ""
        yield "  what each loader will do" if isinstance(result, Diagnosis) else "  what happens to the adapter"
        yield from _loader_lines(result.loaders, width)
    following = _next_command(result.findings)
    if following is None and isinstance(result, AdapterDiagnosis) and result.advice:
        following = result.advice.command or None
    if following:
        yield ""
        yield f"  next: {following}"
    yield ""


def _next_command(findings: tuple[Finding, ...]) -> str | None:
    """The first command of the worst finding that has one; a note needs none."""
    commands = (s.command for f in findings if f.severity is not Severity.NOTE for s in f.steps if s.command)
    return next(commands, None)


def _loader_lines(predictions: tuple[Prediction, ...], width: int) -> Iterator[str]:
    """One entry per outcome with the loaders that have it, and the reason if they have one in common (--json: all)."""
    groups: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(prediction.outcome, []).append(prediction)
    column = max(len(outcome) for outcome in groups)
    for outcome, group in sorted(groups.items(), key=lambda item: item[0] in UNPREDICTED):
        reasons = {prediction.reason for prediction in group}
        text = ", ".join(prediction.loader for prediction in group)
        if len(reasons) == 1 and outcome not in UNPREDICTED:
            text = f"{text}: {reasons.pop()}"
        first, *rest = render.wrapped(text, width - 2, indent=column + 6).splitlines()
        yield f"    {outcome:<{column}}  {first.strip()}"
        yield from rest


def _finding_lines(finding: Finding, width: int) -> Iterator[Line | str]:
    """Title, evidence, cause, and the fixes; a command is a line of its own and is never wrapped."""
    label = (f"{finding.code} {finding.severity}", _STYLES[finding.severity])
    yield render.styled("  ", label, f"  {finding.title}")
    yield from _labelled("evidence", finding.evidence, width)
    if finding.severity is not Severity.NOTE:  # a note is short; --explain has the rest
        yield from _labelled("cause", finding.cause, width)
    for i, step in enumerate(finding.steps):
        code = step.command or step.python
        yield from _labelled("" if i else "fix", f"{step.text}:" if code else f"{step.text}.", width)
        if code:
            yield f"{'':17}{code}"


def _labelled(label: str, text: str, width: int, indent: int = 4) -> Iterator[str]:
    first, *rest = render.wrapped(text, width - 2, indent=15).splitlines()
    yield f"{'':{indent}}{label:<{14 - indent}} {first.strip()}"
    yield from rest


def summary(documents: list[dict[str, Any]]) -> Iterator[Line]:
    """One row per model, from the documents of `--json`."""
    rows = [["model", "tie", "errors", "warnings", "notes"]]
    for document in documents:
        found = [finding["severity"] for finding in document["findings"]]
        counts = ["-"] * 3 if "error" in document else [str(found.count(str(severity))) for severity in Severity]
        tie = "unreadable" if "error" in document else "adapter" if "adapter" in document else document["tie"]
        rows.append([document.get("id") or document.get("adapter") or document["model"], tie, *counts])
    yield from render.columns(rows, "<<>>>")
