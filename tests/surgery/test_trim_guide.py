"""The commands in docs/trim.md print what the page shows, and its Python example runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from helpers.transcripts import is_shown, run_command, transcripts
from helpers.trimmable_models import save_trimmable, write_prose

PAGE = Path(__file__).parent.parent.parent / "docs" / "trim.md"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("guide")
    save_trimmable(where / "base", tie_word_embeddings=True)
    write_prose(where)
    (where / "words.txt").write_text("metaclass\n")
    return where


def test_the_transcripts_are_what_the_commands_print(directory: Path) -> None:
    shown = [(command, output) for command, output in transcripts(PAGE) if "SmolLM2" not in command]
    assert len(shown) == 4
    for command, expected in shown:
        done = run_command(command, directory)
        assert done.returncode == 0, done.stderr
        assert is_shown(expected, done.stdout.rstrip()), done.stdout


def test_the_python_example_runs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["outcome"].proof.largest == 0
    assert [rung["rows"] for rung in names["outcome"].facts["ladder"]["rungs"]] == [701, 512, 384]
