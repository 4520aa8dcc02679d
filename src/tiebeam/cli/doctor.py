"""`tiebeam doctor`: every finding with its cause and its cure, and what each loader will do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiebeam.cli import for_ci, render
from tiebeam.cli.inspect import title, verdict_line
from tiebeam.doctor import Diagnosis, examine
from tiebeam.doctor.adapters import AdapterDiagnosis, examine_adapter, is_adapter
from tiebeam.errors import BadRequest, TiebeamError

if TYPE_CHECKING:
    from rich.text import Text

    from tiebeam.doctor.cures import Cure
    from tiebeam.doctor.findings import Finding
    from tiebeam.surgery import Outcome

_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "cyan"}


@click.command(short_help="Every finding, with its cause and its cure.")
@click.argument("models", nargs=-1, metavar="MODEL...")
@click.option("--fix", is_flag=True, help="Show what the safe cures would change; with --out, write it.")
@click.option("--out", metavar="DST", help="With --fix: where to write the cured model.")
@click.option("--force", is_flag=True, help="With --out: replace DST if it exists.")
@click.option("--base", metavar="MODEL", help="The base of an adapter, where it does not name it.")
@click.option("--embed", metavar="NAME", help="The embedding's tensor, where the architecture is not known.")
@click.option("--head", metavar="NAME", help="The head's tensor.")
@click.option("--recursive", is_flag=True, help="Examine every model below the directories given.")
@click.option("--list", "list_codes", is_flag=True, help="List every finding the doctor can make.")
@click.option("--explain", metavar="CODE", help="Explain one finding: how people meet it, its cause, its cure.")
@click.option(
    "--format", "shape", type=click.Choice(["text", "json", "sarif", "github"]), default="text",
    help="How to print: for people, for programs, or for CI.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def command(
    models: tuple[str, ...], fix: bool, out: str | None, force: bool, base: str | None, embed: str | None,
    head: str | None, recursive: bool, list_codes: bool, explain: str | None, shape: str, as_json: bool,
) -> None:  # fmt: skip
    """Why is this model wrong? Findings with evidence, cause and cure; what each loader will do with it.

    MODEL may be a checkpoint or a PEFT adapter. Exit code 1 when there is a finding of severity error.

    \b
    tiebeam doctor ./merged
    tiebeam doctor ./merged --fix                  what would change
    tiebeam doctor ./merged --fix --out ./cured    change it
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
    found = list(_walk(models)) if recursive else list(models)
    if not found:
        raise BadRequest(f"no models below {', '.join(models)}")
    results = [_examine(model, base, embed, head, keep_going=len(found) > 1) for model in found]
    _print(results, shape, several=len(found) > 1)
    if any(_is_error(result) for result in results):
        raise click.exceptions.Exit(1)
    if any(isinstance(result, _Unreadable) for result in results):
        raise click.exceptions.Exit(3)


def _fix(models: tuple[str, ...], out: str | None, force: bool, shape: str) -> None:
    """The safe cures of one model: shown, and with --out carried out."""
    from tiebeam.doctor.cures import plan_cure
    from tiebeam.surgery import execute

    if len(models) > 1:
        raise click.UsageError("--fix takes one MODEL at a time")
    cure = plan_cure(models[0])
    outcome = execute(cure.plan, out, force=force) if cure.plan and out else None
    if shape == "json":
        planned = cure.plan.to_dict() if cure.plan else None
        done = outcome.to_dict() if outcome else None
        render.emit_json({**cure.diagnosis.to_dict(), "plan": planned, "outcome": done})
    else:
        console = render.console()
        for text in _cure_lines(cure, outcome, out, console.width):
            console.print(text)
    if any(f.level == "error" for f in cure.left) or (cure.plan and not out and _is_error(cure.diagnosis)):
        raise click.exceptions.Exit(1)


def _cure_lines(cure: Cure, outcome: Outcome | None, out: str | None, width: int) -> Iterator[Text | str]:
    yield render.styled((title(cure.diagnosis.report), "bold"))
    yield verdict_line(cure.diagnosis.report)
    if cure.plan is None:
        yield "  nothing to cure" if not cure.left else "  nothing that can be cured without a decision"
    else:
        yield "  changed" if outcome else "  would change (nothing is written without --out DST)"
        for change in cure.plan.changes:
            yield f"    {change}"
    for finding in cure.left:
        if finding.level != "note":
            yield from render.wrapped(f"{finding.code} {finding.level}: {finding.about.title}", width).splitlines()
            yield from render.wrapped(finding.about.cure, width, indent=4).splitlines()
    if outcome:
        yield render.styled("  ", ("cured", render.TIED), f": {out} is {outcome.after.tie}")


class _Unreadable:
    """A model among several that could not be opened: reported, and the others still examined."""

    def __init__(self, model: str, reason: str) -> None:
        self.model, self.reason = model, reason

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model, "error": self.reason, "findings": []}


Result = Diagnosis | AdapterDiagnosis | _Unreadable


def _examine(model: str, base: str | None, embed: str | None, head: str | None, keep_going: bool) -> Result:
    try:
        return examine_adapter(model, base) if is_adapter(model) else examine(model, embed=embed, head=head)
    except TiebeamError as error:
        if not keep_going:
            raise
        return _Unreadable(model, str(error))


def _walk(roots: tuple[str, ...]) -> Iterator[str]:
    """Directories that hold a model or an adapter, trees of several processes among them, and lone GGUF files."""
    from tiebeam.checkpoint.distributed.detect import is_model_tree

    seen: set[str] = set()
    for root in roots:
        if not Path(root).is_dir():
            yield root
        for where, directories, files in os.walk(root):
            directories.sort()
            if {"config.json", "adapter_config.json"} & set(files) or any(f.endswith(".safetensors") for f in files):
                seen.add(where)
                yield where
            elif is_model_tree(Path(where).name, files):
                if str(Path(where).parent) not in seen:  # a run's directory stands for the tree in it
                    yield where
            else:
                yield from (str(Path(where) / f) for f in sorted(files) if f.endswith((".gguf", ".safetensors")))


def _findings(result: Result) -> tuple[Finding, ...]:
    return () if isinstance(result, _Unreadable) else result.findings


def _is_error(result: Result) -> bool:
    return any(f.level == "error" for f in _findings(result))


def _name(result: Result) -> str:
    if isinstance(result, _Unreadable):
        return result.model
    return result.report.model if isinstance(result, Diagnosis) else result.adapter


def _print(results: list[Result], shape: str, several: bool) -> None:
    if shape == "json":
        documents = [result.to_dict() for result in results]
        render.emit_json(documents if several else documents[0])
    elif shape == "sarif":
        render.emit_json(for_ci.sarif([_placed(result) for result in results]))
    elif shape == "github":
        for result in results:
            for line in for_ci.github(_placed(result)):
                click.echo(line)
    else:
        console = render.console()
        for result in results:
            for text in _lines(result, console.width):
                console.print(text)
        if several:
            for row in _summary(results):
                console.print(row)


def _placed(result: Result) -> for_ci.Placed:
    reason = result.reason if isinstance(result, _Unreadable) else ""
    return for_ci.Placed(_name(result), _findings(result), reason)


def _lines(result: Result, width: int) -> Iterator[Text | str]:
    if isinstance(result, _Unreadable):
        yield render.styled((result.model, "bold"))
        yield render.styled("  ", ("cannot be read", "bold red"), f": {result.reason}")
        yield ""
        return
    if isinstance(result, Diagnosis):
        yield render.styled((title(result.report), "bold"))
        yield verdict_line(result.report)
    else:
        yield render.styled((f"{result.adapter} · adapter", "bold"))
        yield f"  base         {result.base.model}: {result.base.tie}"
        yield f"  merge        {result.merge}"
    for finding in result.findings:
        yield ""
        about = finding.about
        yield render.styled("  ", (f"{finding.code} {finding.level}", _STYLES[finding.level]), f"  {about.title}")
        for label, text in (("evidence", finding.evidence), ("cause", about.cause), ("cure", about.cure)):
            first, *rest = render.wrapped(text, width - 2, indent=15).splitlines()
            yield f"    {label:<10} {first.strip()}"
            yield from rest
    if not result.findings:
        yield "  nothing found"
    if isinstance(result, Diagnosis) and result.loaders:
        yield ""
        yield "  what each loader will do"
        yield from render.columns([[v.loader, v.outcome, v.reason] for v in result.loaders], "<<<", indent=4)
    yield ""


def _summary(results: list[Result]) -> Iterator[Text]:
    rows = [["model", "tie", "errors", "warnings", "notes"]]
    for result in results:
        counts = [str(sum(f.level == level for f in _findings(result))) for level in ("error", "warning", "note")]
        if isinstance(result, _Unreadable):
            rows.append([result.model, "unreadable", "-", "-", "-"])
        else:
            tie = str(result.report.tie) if isinstance(result, Diagnosis) else "adapter"
            rows.append([_name(result), tie, *counts])
    yield from render.columns(rows, "<<>>>")


def _describe(code: str | None, shape: str) -> None:
    from tiebeam.doctor import CODES

    if code is None:
        if shape == "json":
            render.emit_json([{"code": c.code, "severity": c.severity, "title": c.title} for c in CODES.values()])
            return
        console = render.console()
        for line in render.columns([[c.code, str(c.severity), c.title] for c in CODES.values()], "<<<", indent=0):
            console.print(line)
        return
    about = CODES.get(code.upper())
    if about is None:
        raise BadRequest(f"there is no finding {code!r}; `tiebeam doctor --list` shows them all")
    click.echo(about.page().rstrip())
