"""Run a CLI verb in this process."""

from collections.abc import Callable
from typing import NamedTuple

import pytest


class Done(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    from tiebeam.cli import main

    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> Done:
        try:
            main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        return Done(code, *capsys.readouterr())

    return run
