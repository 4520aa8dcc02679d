"""`tiebeam doctor`: every finding with evidence, cause and fix, and what each loader will do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tiebeam.cli import for_ci, render
from tiebeam.cli.doctor_lines import fix_lines, has_error, report_lines, summary
from tiebeam.cli.option_names import to_options
from tiebeam.cli.progress import Progress
from tiebeam.doctor import RULES, Severity, diagnose
from tiebeam.doctor.adapters import AdapterDiagnosis
from tiebeam.doctor.baseline import Baseline
from tiebeam.doctor.several import (
    Result,
    ResultFile,
    Unreadable,
    diagnose_any,
    diagnose_several,
    listed_models,
    models_below,
    result_name,
)
from tiebeam.errors import BadRequest


@click.command(short_help="Every finding, with its cause and its fix.")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--fix", is_flag=True, help="Show what the fixes that lose nothing would change; with --out, write it.")
@click.option("--out", metavar="DST", help="With --fix: where to write the fixed model.")
@click.option("--force", is_flag=True, help="With --out: replace DST if tiebeam wrote it.")
@click.option("--base", metavar="MODEL", help="The base of an adapter, if the adapter does not name it.")
@click.option("--embed", metavar="NAME", help="The embedding's tensor, if the architecture is unknown.")
@click.option("--head", metavar="NAME", help="The LM head's tensor.")
@click.option("--rows", is_flag=True, help="Read every row of both matrices; list the untrained and broken ones.")
@click.option("--recursive", is_flag=True, help="Diagnose every model and adapter below the given directories.")
@click.option("--from-file", "listing", metavar="FILE", help="Diagnose the models that FILE lists, one per line.")
@click.option("--jsonl", metavar="FILE", help="Append one JSON line per model to FILE; skip the models it has.")
@click.option("--jobs", type=int, default=1, show_default=True, help="Models to read at the same time.")
@click.option("--baseline", metavar="FILE", help="Leave out the findings that FILE accepts.")
@click.option("--write-baseline", is_flag=True, help="With --baseline: accept what is found now; write FILE.")
@click.option(
    "--fail-on", type=click.Choice(["error", "warning", "note", "never"]), default="error", show_default=True,
    help="The mildest finding that makes the exit code 1.",
)  # fmt: skip
@click.option("--list", "list_codes", is_flag=True, help="List every finding.")
@click.option("--explain", metavar="CODE", help="Explain one finding: symptoms, cause, fix.")
@click.option(
    "--format", "shape", type=click.Choice(["text", "json", "sarif", "github"]), default="text",
    help="Output for people, for programs, or for CI.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def command(
    models: tuple[str, ...], fix: bool, out: str | None, force: bool, base: str | None, embed: str | None,
    head: str | None, rows: bool, recursive: bool, listing: str | None, jsonl: str | None, jobs: int,
    baseline: str | None, write_baseline: bool, fail_on: str, list_codes: bool, explain: str | None, shape: str,
    as_json: bool,
) -> None:  # fmt: skip
    """What is wrong with MODEL? Findings with evidence, cause and fix, and what each loader will do with it.

    MODEL is a checkpoint or a PEFT adapter; without one, the current directory. The exit code is 1 if there is a
    finding of severity error (see --fail-on), and 3 if MODEL cannot be read or is no model (a Git LFS pointer, an ONNX
    export, a tokenizer alone).

    \b
    tiebeam doctor                                 the model in this directory
    tiebeam doctor ./merged
    tiebeam doctor ./merged --fix                  what would change
    tiebeam doctor ./merged --fix --out ./fixed    write it
    tiebeam doctor ./merged --rows                 untrained, zero, NaN and outlying rows
    tiebeam doctor ./adapter --base ./base
    tiebeam doctor --recursive ./checkpoints --format github
    tiebeam doctor --recursive . --baseline accepted.json --write-baseline
    tiebeam doctor --from-file ids.txt --jsonl results.jsonl --jobs 8
    tiebeam doctor --explain TB101
    """
    shape = "json" if as_json else shape
    if list_codes or explain:
        _describe(explain, shape)
        return
    if not models and listing is None:
        models = (".",)
    if fix:
        _fix(models, out, force, shape)
        return
    if out or force:
        raise click.UsageError("--out and --force go with --fix")
    if write_baseline and not baseline:
        raise click.UsageError("--write-baseline goes with --baseline FILE")
    if jsonl and shape in ("sarif", "github"):
        raise click.UsageError(f"--jsonl does not go with --format {shape}")
    named = [*models, *(listed_models(listing) if listing is not None else ())]
    found = list(models_below(named)) if recursive else named
    if not found:
        raise BadRequest(f"no models below {', '.join(named)}")
    options = {"base": base, "embed": embed, "head": head, "rows": rows or None}
    several = len(found) > 1 or listing is not None or jsonl is not None
    results, documents = _diagnose(found, several, jobs, jsonl, options)
    accepted = _accepted(baseline, write_baseline, documents)
    documents = [_without(document, accepted) for document in documents]
    if jsonl:
        _print_documents(documents, shape)
    else:
        _print([_unaccepted(result, accepted) for result in results], documents, shape, several)
    if baseline and shape == "text":
        _print_baseline(baseline, documents)
    severities = {finding["severity"] for document in documents for finding in document["findings"]}
    levels = [str(severity) for severity in Severity]
    if fail_on != "never" and severities & set(levels[: levels.index(fail_on) + 1]):
        raise click.exceptions.Exit(1)
    if any("error" in document for document in documents):
        raise click.exceptions.Exit(3)


def _diagnose(
    models: list[str], several: bool, jobs: int, jsonl: str | None, options: dict[str, Any]
) -> tuple[list[Result], list[dict[str, Any]]]:
    """The results, and the document of each; with `jsonl` the documents of earlier runs too."""
    if not several:
        (model,) = models
        alone = diagnose_any(model, **options)
        return [alone], [alone.to_dict()]
    file = ResultFile(Path(jsonl)) if jsonl else None
    remaining = file.remaining(models) if file else models
    results: list[Result] = []
    with Progress() as progress:
        if file and len(remaining) < len(models):
            progress.note(f"{len(models) - len(remaining):,} of {len(models):,} models are in {jsonl} already")
        for model, result in diagnose_several(remaining, jobs=jobs, **options):
            if isinstance(result, Unreadable):
                result = replace(result, reason=to_options(result.reason, command))
            results.append(result)
            if file:
                file.add(model, result)
            progress("examining", len(results), len(remaining), unit="models", detail=model)
    return results, [file.documents[model] for model in models] if file else [result.to_dict() for result in results]


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
        for text in fix_lines(planned, outcome, remaining, out, console.width):
            console.print(text)
    unwritten = planned.plan is not None and not out and has_error(planned.diagnosis.findings)
    if has_error(planned.left) or has_error(remaining) or unwritten:
        raise click.exceptions.Exit(1)


def _accepted(path: str | None, write: bool, documents: list[dict[str, Any]]) -> Baseline | None:
    """The baseline that was asked for, written first if it should be."""
    if path is None:
        return None
    if write:
        return Baseline.write(path, ((_subject(d), (f["code"] for f in d["findings"])) for d in documents))
    return Baseline.read(path)


def _subject(document: dict[str, Any]) -> str:
    return str(document.get("id") or document.get("adapter") or document["model"])


def _without(document: dict[str, Any], baseline: Baseline | None) -> dict[str, Any]:
    """The document without the accepted findings, whose codes it has under `accepted`."""
    if baseline is None:
        return document
    subject, found = _subject(document), document["findings"]
    accepted = sorted({f["code"] for f in found if baseline.accepts(subject, f["code"])})
    return {**document, "findings": [f for f in found if f["code"] not in accepted], "accepted": accepted}


def _unaccepted(result: Result, baseline: Baseline | None) -> Result:
    if baseline is None or isinstance(result, Unreadable):
        return result
    name = result_name(result)
    return replace(result, findings=tuple(f for f in result.findings if not baseline.accepts(name, f.code)))


def _print_documents(documents: list[dict[str, Any]], shape: str) -> None:
    if shape == "json":
        render.emit_json(documents)
    else:
        _print_all(summary(documents))


def _print(results: list[Result], documents: list[dict[str, Any]], shape: str, several: bool) -> None:
    if shape == "json":
        render.emit_json(documents if several else documents[0])
    elif shape == "sarif":
        render.emit_json(for_ci.sarif([_located(result) for result in results]))
    elif shape == "github":
        for result in results:
            for line in for_ci.github(_located(result)):
                click.echo(line)
    else:
        width = render.console().width
        for result, document in zip(results, documents, strict=True):
            if isinstance(result, AdapterDiagnosis):
                result = replace(result, merge=to_options(result.merge, command))
            _print_all(report_lines(result, width, document.get("accepted", ())))
        if several:
            _print_all(summary(documents))


def _print_all(lines: Iterable[Any]) -> None:
    console = render.console()
    for line in lines:
        console.print(line)


def _print_baseline(path: str, documents: list[dict[str, Any]]) -> None:
    accepted = [code for document in documents for code in document["accepted"]]
    models = sum(bool(document["accepted"]) for document in documents)
    found = f"{len(accepted):,} finding{'s' if len(accepted) != 1 else ''}"
    render.console().print(f"accepted by {path}: {found} of {models:,} model{'s' if models != 1 else ''}")


def _located(result: Result) -> for_ci.Located:
    reason = result.reason if isinstance(result, Unreadable) else ""
    return for_ci.Located(result_name(result), result.findings, reason)


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
