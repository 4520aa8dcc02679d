"""Run a verb of the command line in this process, output included."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout, suppress

import click


def verb(*arguments: object) -> str:
    """What the verb prints. A TiebeamError is raised as it is; an exit code is not an error here."""
    from tiebeam.cli import tiebeam

    out = io.StringIO()
    quiet = suppress(click.ClickException, click.exceptions.Exit, SystemExit)
    with redirect_stdout(out), redirect_stderr(io.StringIO()), quiet:
        tiebeam.main([str(argument) for argument in arguments], prog_name="tiebeam", standalone_mode=False)
    return out.getvalue()
