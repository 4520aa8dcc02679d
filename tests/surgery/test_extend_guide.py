"""The commands in docs/extend.md print what the page shows, and its Python examples run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from helpers.models_with_tokenizers import save_with_tokenizer
from helpers.transcripts import check_transcripts

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "extend.md"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied tiny llama with one row of padding, a copy with two rows of zeros, and a file of tokens."""
    where = tmp_path_factory.mktemp("guide")
    model = save_with_tokenizer(where / "base", rows=301, tie_word_embeddings=True)
    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * 0.2)
    model.save_pretrained(where / "base")
    shutil.copytree(where / "base", where / "broken")
    with torch.no_grad():
        weight[[7, 9]] = 0
    model.save_pretrained(where / "broken")
    (where / "words.txt").write_text("Zwölf Boxkämpfer\nSylter Deich\n", encoding="utf-8")
    return where


def test_the_transcripts_are_what_the_commands_print(directory: Path) -> None:
    check_transcripts(PAGE, directory, 3)


def test_the_python_examples_run(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    model = transformers.AutoModelForCausalLM.from_pretrained("base")
    names: dict[str, Any] = {
        "model": model,
        "tokenizer": transformers.AutoTokenizer.from_pretrained("base"),
        "optimizer": torch.optim.AdamW(model.parameters()),
    }
    exec(first, names)
    assert names["outcome"].proof.largest == 0
    exec(second, names)
    assert names["tokenizer"]("</think>")["input_ids"] == [301]
