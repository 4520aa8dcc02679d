"""The commands and the Python in docs/quantize.md run; the transcript is what the command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers.tiny_llama_gguf import TEXT, write_llama_gguf
from helpers.transcripts import check_transcripts
from tiebeam.cli import tiebeam as command

PAGE = Path(__file__).parents[3] / "docs" / "quantize.md"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_llama_gguf(tmp_path / "model.gguf", "F16")
    write_llama_gguf(tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf", "Q8_0")
    for name in ("my.txt", "hamlet_gut.txt", "macbeth_gut.txt"):
        (tmp_path / name).write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_of_the_guide_runs(here: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += [found.replace("\n", " ") for found in re.findall(r"`(tiebeam quantize [^`]*--yes)`", PAGE.read_text())]
    assert len(lines) == 4
    for line in lines:
        result = CliRunner().invoke(command, [*shlex.split(line)[1:], "--force"], catch_exceptions=False)
        assert result.exit_code == 0, result.output


def test_the_python_of_the_guide_runs(here: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(block, {})
    assert (here / "small.gguf").exists()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_transcript_is_what_the_command_prints(smollm2: Path, tmp_path: Path) -> None:
    from tiebeam.surgery.quantize import quantize

    quantize(smollm2, tmp_path / "twin.gguf", embed="Q5_0", proof=False)
    check_transcripts(PAGE, tmp_path, 1)
