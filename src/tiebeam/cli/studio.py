"""`tiebeam studio`: the web studio, on this machine only."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tiebeam.errors import BadRequest


@click.command(short_help="The web studio: the lesson, the calculator, your models and runs.")
@click.argument("sources", metavar="[MODEL|RUN]...", nargs=-1)
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="Listen here. Default: 4270, or the next free."
)
@click.option("--root", type=click.Path(path_type=Path), metavar="DIR", help="List every model and run below DIR, too.")
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option("--export", "target", type=click.Path(path_type=Path), metavar="DIR",
              help="Write the lesson and the calculator to DIR as a static site, and stop.")  # fmt: skip
def command(sources: tuple[str, ...], port: int | None, root: Path | None, no_open: bool, target: Path | None) -> None:
    """Look instead of reading: a lesson, a calculator, your models and your runs, in the browser.

    It listens on 127.0.0.1 only, loads nothing from the network, and reads nothing but the models and runs named
    here and those below --root. Stop it with Ctrl-C.

    \b
    tiebeam studio                                   the lesson and the calculator
    tiebeam studio ./my-model model.gguf             and two models
    tiebeam studio runs/tied runs/untied             live curves, overlaid
    tiebeam studio --root ~/models --port 8000
    tiebeam studio --export site                     a static site for any web server
    """
    if target is not None:
        from tiebeam.studio.pages import export

        if sources or root or port is not None:
            raise BadRequest("--export writes the lesson and the calculator alone; leave out models, --root and --port")
        written = export(target)
        click.echo(f"{len(written)} files in {target}; see it with: python -m http.server -d {target}")
        return
    from tiebeam.studio.model_list import ModelList
    from tiebeam.studio.server import serve

    models = ModelList(sources, root)
    page = "" if not sources else "models.html" if models.models() else "runs.html"
    browser = sys.stdout.isatty() and not no_open
    serve(
        models,
        port,
        lambda address: click.echo(f"tiebeam studio: {address}  (Ctrl-C stops it)"),
        page if browser else None,
    )
