"""`tiebeam unpack`: restore a checkpoint from a packed artifact."""

from __future__ import annotations

import shlex

import click

from tiebeam.cli import render


@click.command(short_help="Restore a checkpoint from a packed artifact.")
@click.argument("artifact", type=click.Path())
@click.argument("target", type=click.Path())
@click.option("--force", is_flag=True, help="Replace TARGET if `unpack` wrote it; anything else there is refused.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(artifact: str, target: str, force: bool, as_json: bool) -> None:
    """Write the checkpoint in ARTIFACT (from `tiebeam pack`) to the directory TARGET.

    \b
    tiebeam unpack run.tbp restored
    """
    from tiebeam.train.pack_run import unpack_run

    tensors = unpack_run(artifact, target, force=force)
    if as_json:
        render.emit_json({"target": target, "tensors": tensors})
    else:
        console = render.console()
        console.print(f"{target}: {tensors} tensors")
        console.print(f"  next: tiebeam inspect {shlex.quote(str(target))}")
