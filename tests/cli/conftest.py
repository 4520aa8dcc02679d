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
        except SystemExit as stop:
            return Done(int(stop.code or 0), *capsys.readouterr())
        return Done(0, *capsys.readouterr())

    return run
