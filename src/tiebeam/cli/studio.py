"""`tiebeam studio`: the web studio, served on this machine only."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tiebeam._visible import visible
from tiebeam.cli import render
from tiebeam.errors import BadRequest


@click.command()
@click.argument("sources", metavar="[MODEL|RUN]...", nargs=-1)
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="Port to listen on. Default: 4270, or the next free one."
)
@click.option("--root", type=click.Path(path_type=Path), metavar="DIR", help="Also list every model and run below DIR.")
@click.option(
    "--memory",
    metavar="SIZE",
    help="Hold the weights of several models in memory, up to SIZE (16GB). Default: those of one model.",
)
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option("--export", "target", type=click.Path(path_type=Path), metavar="DIR",
              help="Write the lesson and the calculator to DIR as a static site, and exit.")  # fmt: skip
def command(
    sources: tuple[str, ...], port: int | None, root: Path | None, memory: str | None, no_open: bool,
    target: Path | None,
) -> None:  # fmt: skip
    """Open the web studio in a browser: a lesson, a calculator, your models and your runs.

    It listens on 127.0.0.1 only, loads nothing from the network, and reads only the models and runs named here and
    those below --root. Stop it with Ctrl-C.

    \b
    tiebeam studio                                   the lesson and the calculator
    tiebeam studio ./my-model model.gguf             and two models
    tiebeam studio runs/tied runs/untied             live loss curves, overlaid
    tiebeam studio --root ~/models --port 8000
    tiebeam studio --export site                     a static site for any web server
    """
    if target is not None:
        from tiebeam.studio.pages import export

        if sources or root or memory or port is not None:
            raise BadRequest("--export writes only the lesson and the calculator; leave out models and other options")
        written = export(target)
        render.echo(f"{len(written)} files in {target}; view it with: python -m http.server -d {target}")
        return
    from tiebeam.budget import parse_bytes
    from tiebeam.studio.model_list import ModelList
    from tiebeam.studio.server import serve

    limit = parse_bytes(memory) if memory is not None else None
    models = ModelList(sources, root)
    page = "" if not sources else "models.html" if models.models() else "runs.html"
    for where in models.empty():
        hint = "" if root else f"; to list the models below it: tiebeam studio --root {where}"
        render.echo(f"nothing found in {visible(where)}: it has no model and no run{hint}", err=True)
    browser = sys.stdout.isatty() and not no_open
    serve(
        models,
        port,
        lambda address: click.echo(f"tiebeam studio: {address}  (Ctrl-C stops it)"),
        page if browser else None,
        memory=limit,
    )
