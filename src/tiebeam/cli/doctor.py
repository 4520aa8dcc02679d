"""`tiebeam doctor`: every finding with evidence, cause and fix, and what each loader will do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiebeam.cli import for_ci, render
from tiebeam.cli.inspect import title, verdict_line
from tiebeam.cli.option_names import to_options
from tiebeam.cli.row_lines import row_lines
from tiebeam.doctor import RULES, Diagnosis, Severity, diagnose
from tiebeam.doctor.adapters import AdapterDiagnosis, diagnose_adapter, is_adapter
from tiebeam.doctor.diagnosis import verdict
from tiebeam.doctor.loaders import UNPREDICTED
from tiebeam.doctor.rule import Names
from tiebeam.errors import BadRequest, TiebeamError

if TYPE_CHECKING:
    from rich.text import Text

    from tiebeam.doctor import Finding
    from tiebeam.doctor.fix import FixPlan
    from tiebeam.doctor.loaders import Prediction
    from tiebeam.surgery import Outcome

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "cyan"}
_HEALTHY = "bold green"


@click.command(short_help="Every finding, with its cause and its fix.")
@click.argument("models", nargs=-1, metavar="MODEL...")
@click.option("--fix", is_flag=True, help="Show what the fixes that lose nothing would change; with --out, write it.")
@click.option("--out", metavar="DST", help="With --fix: where to write the fixed model.")
@click.option("--force", is_flag=True, help="With --out: replace DST if it exists.")
@click.option("--base", metavar="MODEL", help="The base of an adapter, if the adapter does not name it.")
@click.option("--embed", metavar="NAME", help="The embedding's tensor, if the architecture is unknown.")
@click.option("--head", metavar="NAME", help="The LM head's tensor.")
@click.option("--rows", is_flag=True, help="Read every row of both matrices; list the untrained and broken ones.")
@click.option("--recursive", is_flag=True, help="Diagnose every model below the given directories.")
@click.option("--list", "list_codes", is_flag=True, help="List every finding.")
@click.option("--explain", metavar="CODE", help="Explain one finding: symptoms, cause, fix.")
@click.option(
    "--format", "shape", type=click.Choice(["text", "json", "sarif", "github"]), default="text",
    help="Output for people, for programs, or for CI.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def command(
    models: tuple[str, ...], fix: bool, out: str | None, force: bool, base: str | None, embed: str | None,
    head: str | None, rows: bool, recursive: bool, list_codes: bool, explain: str | None, shape: str, as_json: bool,
) -> None:  # fmt: skip
    """What is wrong with MODEL? Findings with evidence, cause and fix, and what each loader will do with it.

    MODEL is a checkpoint or a PEFT adapter. The exit code is 1 if there is a finding of severity error, and 3 if MODEL
    cannot be read or is no model (a Git LFS pointer, an ONNX export, a tokenizer alone).

    \b
    tiebeam doctor ./merged
    tiebeam doctor ./merged --fix                  what would change
    tiebeam doctor ./merged --fix --out ./fixed    write it
    tiebeam doctor ./merged --rows                 untrained, zero, NaN and outlying rows
    tiebeam doctor ./adapter --base ./base
    tiebeam doctor --recursive ./checkpoints --format github
    tiebeam doctor --explain TB101
    """
    shape = "json" if as_json else shape
    if list_codes or explain:
        _describe(explain, shape)
        return
    if not models:
        raise click.UsageError("name a MODEL, or use --list or --explain CODE")
    if fix:
        _fix(models, out, force, shape)
        return
    if out or force:
        raise click.UsageError("--out and --force go with --fix")
    found = list(_models_below(models)) if recursive else list(models)
    if not found:
        raise BadRequest(f"no models below {', '.join(models)}")
    results = [_diagnose(model, base, embed, head, rows, several=len(found) > 1) for model in found]
    _print(results, shape, several=len(found) > 1)
    if any(_has_error(_findings(result)) for result in results):
        raise click.exceptions.Exit(1)
    if any(isinstance(result, _Unreadable) for result in results):
        raise click.exceptions.Exit(3)


def _fix(models: tuple[str, ...], out: str | None, force: bool, shape: str) -> None:
    """Print what the fixes of one model change, and write it with --out."""
    from tiebeam.doctor.fix import plan_fix

    if len(models) > 1:
        raise click.UsageError("--fix takes one MODEL at a time")
    planned = plan_fix(models[0])
    outcome = planned.write(out, force=force) if planned.plan and out else None
    remaining = diagnose(out).findings if outcome and out else ()
    if shape == "json":
        plan = planned.plan.to_dict() if planned.plan else None
        done = outcome.to_dict() if outcome else None
        after = {"notes": list(planned.notes), "remaining": [finding.to_dict() for finding in remaining]}
        render.emit_json({**planned.diagnosis.to_dict(), "plan": plan, "outcome": done, "fix": after})
    else:
        console = render.console()
        for text in _fix_lines(planned, outcome, remaining, out, console.width):
            console.print(text)
    unwritten = planned.plan is not None and not out and _has_error(planned.diagnosis.findings)
    if _has_error(planned.left) or _has_error(remaining) or unwritten:
        raise click.exceptions.Exit(1)


def _fix_lines(
    planned: FixPlan, outcome: Outcome | None, remaining: tuple[Finding, ...], out: str | None, width: int
) -> Iterator[Text | str]:
    report = planned.diagnosis.report
    if outcome and _has_error(remaining):
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


class _Unreadable:
    """A model among several that could not be opened: reported, and the others are still diagnosed."""

    def __init__(self, model: str, reason: str) -> None:
        self.model, self.reason = model, reason

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model, "error": self.reason, "findings": []}


Result = Diagnosis | AdapterDiagnosis | _Unreadable


def _diagnose(model: str, base: str | None, embed: str | None, head: str | None, rows: bool, several: bool) -> Result:
    try:
        return (
            diagnose_adapter(model, base)
            if is_adapter(model)
            else diagnose(model, embed=embed, head=head, rows=rows or None)
        )
    except TiebeamError as error:
        if not several:
            raise
        return _Unreadable(model, to_options(str(error), command))


def _models_below(roots: tuple[str, ...]) -> Iterator[str]:
    """Directories with a model, an adapter or a checkpoint of several ranks, and single GGUF or safetensors files."""
    from tiebeam.checkpoint.distributed.detect import is_distributed_model

    seen: set[str] = set()
    for root in roots:
        if not Path(root).is_dir():
            yield root
        for where, directories, files in os.walk(root):
            directories.sort()
            if {"config.json", "adapter_config.json"} & set(files) or any(f.endswith(".safetensors") for f in files):
                seen.add(where)
                yield where
            elif is_distributed_model(Path(where).name, files):
                if str(Path(where).parent) not in seen:  # listed already as the directory of the run
                    yield where
            else:
                yield from (str(Path(where) / f) for f in sorted(files) if f.endswith((".gguf", ".safetensors")))


def _findings(result: Result) -> tuple[Finding, ...]:
    return () if isinstance(result, _Unreadable) else result.findings


def _has_error(findings: tuple[Finding, ...]) -> bool:
    return any(finding.severity is Severity.ERROR for finding in findings)


def _style(findings: tuple[Finding, ...]) -> str:
    """The style of a verdict: that of the worst finding; a note does not make a model unhealthy."""
    worst = findings[0].severity if findings else Severity.NOTE
    return _HEALTHY if worst is Severity.NOTE else _STYLES[worst]


def _name(result: Result) -> str:
    if isinstance(result, _Unreadable):
        return result.model
    return result.report.model if isinstance(result, Diagnosis) else result.adapter


def _print(results: list[Result], shape: str, several: bool) -> None:
    if shape == "json":
        documents = [result.to_dict() for result in results]
        render.emit_json(documents if several else documents[0])
    elif shape == "sarif":
        render.emit_json(for_ci.sarif([_located(result) for result in results]))
    elif shape == "github":
        for result in results:
            for line in for_ci.github(_located(result)):
                click.echo(line)
    else:
        console = render.console()
        for result in results:
            for text in _lines(result, console.width):
                console.print(text)
        if several:
            for row in _summary(results):
                console.print(row)


def _located(result: Result) -> for_ci.Located:
    reason = result.reason if isinstance(result, _Unreadable) else ""
    return for_ci.Located(_name(result), _findings(result), reason)


def _lines(result: Result, width: int) -> Iterator[Text | str]:
    if isinstance(result, _Unreadable):
        yield render.styled(("cannot be read", "bold red"), f" · {result.model}")
        yield f"  {result.reason}"
        yield ""
        return
    known = isinstance(result, Diagnosis) or result.base is not None
    phrase = (verdict(result.findings) if known else "no verdict without the base", _style(result.findings))
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
        yield from _labelled("merge", to_options(result.merge, command), width, indent=2)
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


def _finding_lines(finding: Finding, width: int) -> Iterator[Text | str]:
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


def _summary(results: list[Result]) -> Iterator[Text]:
    rows = [["model", "tie", "errors", "warnings", "notes"]]
    for result in results:
        counts = [str(sum(f.severity is severity for f in _findings(result))) for severity in Severity]
        if isinstance(result, _Unreadable):
            rows.append([result.model, "unreadable", "-", "-", "-"])
        else:
            tie = str(result.report.tie) if isinstance(result, Diagnosis) else "adapter"
            rows.append([_name(result), tie, *counts])
    yield from render.columns(rows, "<<>>>")


def _describe(code: str | None, shape: str) -> None:
    """Print the list of findings, or the page of one."""
    if code is None:
        rules = RULES.values()
        if shape == "json":
            render.emit_json([{"code": r.code, "severity": r.severity, "title": r.title} for r in rules])
            return
        console = render.console()
        for line in render.columns([[r.code, str(r.severity), r.title] for r in rules], "<<<", indent=0):
            console.print(line)
        return
    rule = RULES.get(code.upper())
    if rule is None:
        raise BadRequest(f"there is no finding {code!r}; `tiebeam doctor --list` lists them all")
    click.echo(rule.page().rstrip())
