"""The commands in docs/surgery.md print what the page shows, and its Python examples run."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from helpers.tiny_models import build
from helpers.transcripts import check_transcripts

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "surgery.md"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tied and an untied tiny llama, and a copy that stores the tied matrix twice."""
    from safetensors.torch import load_file, save_file

    for name, tied in (("tied", True), ("merged", True), ("untied-2", False)):
        build("llama", tie_word_embeddings=tied).save_pretrained(tmp_path / name)
        tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(96)}, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
    weights = tmp_path / "merged" / "model.safetensors"
    tensors = load_file(weights)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, weights, {"format": "pt"})
    ids = np.random.default_rng(1).integers(0, 96, 1500)
    (tmp_path / "wiki.txt").write_text(" ".join(f"w{i}" for i in ids))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_transcripts_are_what_the_commands_print(directory: Path) -> None:
    check_transcripts(PAGE, directory, 3)


def test_the_python_examples_run(directory: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    for block in blocks[:2]:
        exec(block, names)
    assert names["outcome"].proof.largest == 0
    assert {"untied", "joint", "tied-2"} <= {path.name for path in directory.iterdir()}
    import torch

    model = build("llama", tie_word_embeddings=True)
    names |= {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    exec(blocks[2], names)
