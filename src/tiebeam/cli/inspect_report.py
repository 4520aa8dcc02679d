"""What `tiebeam inspect` prints: the report and the findings, or one JSON document. Does not import click."""

from __future__ import annotations

from tiebeam.cli import render
from tiebeam.cli.progress import Progress


def show(model: str, embed: str | None = None, head: str | None = None, *, as_json: bool = False) -> None:
    """Inspect `model` and print the result."""
    from tiebeam.doctor import diagnose

    with Progress(as_json) as progress, progress.waiting(f"reading {model}"):
        diagnosis = diagnose(model, embed=embed, head=head, loaders=False)
    if as_json:
        document = diagnosis.to_dict()
        del document["loaders"]  # `tiebeam doctor --json` has this table
        render.emit_json(document)
        return
    console = render.console()
    report = diagnosis.report
    if report.notes:
        from dataclasses import replace

        from tiebeam.cli.inspect import command  # here: only a note can name an option
        from tiebeam.cli.option_names import to_options

        report = replace(report, notes=tuple(to_options(note, command) for note in report.notes))
    for line in report.lines(console.width):
        console.print(line)
    for finding in diagnosis.findings:
        console.print(render.wrapped(f"{finding.code} {finding.severity}: {finding.title}", console.width))
    if diagnosis.findings:
        import shlex

        console.print(f"  next: tiebeam doctor {shlex.quote(report.model)}")
