"""Run a verb as the console does, and hand back (exit code, standard output, standard error)."""

import pytest


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
        out, err = capsys.readouterr()
        return code, out, err

    return run
