"""Run a verb as the console does, and hand back what it left."""

from typing import NamedTuple

import pytest


class Done(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def run(capsys, monkeypatch):
    from tiebeam.cli import main

    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments):
        try:
            main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        return Done(code, *capsys.readouterr())

    return run
