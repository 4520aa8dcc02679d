"""A model whose every string is hostile to a terminal, a log, a CI runner and a page."""

from __future__ import annotations

import json
import re
import tempfile
import unicodedata
from pathlib import Path

import numpy as np

from helpers.building import write_model
from helpers.studio_files import WORDS, tiny_llama

NAME = "\x1b[2J\x9b1m\n ::error::forged\r##[error]forged##vso[task.x]forged[red]x\u202e\u2066\u2028\x7f"
"""Everything that a file name may hold too; no slash and no NUL."""
TEXT = NAME + "\x00</b><script>alert(1)</script>[red]x[/red]](http://forged)"


def harmless(text: str) -> None:
    for character in text:
        assert character == "\n" or unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp", "Cs"), repr(text)
    assert not re.search(r"^\s*::(?!(error|warning|notice) file=)", text, re.MULTILINE), text
    assert not re.search(r"##(vso)?\[", text), text


def hostile_llama(where: Path) -> Path:
    """A Llama that can run: it generates hostile tokens, and has hostile tensors, config values and metadata."""
    from safetensors.numpy import load_file

    with tempfile.TemporaryDirectory() as scratch:
        made = tiny_llama(Path(scratch), tied=False)
        tensors = {**load_file(made / "model.safetensors"), TEXT: np.ones((2, 2), np.float32)}
        config = json.loads((made / "config.json").read_text())
        tokenizer = json.loads((made / "tokenizer.json").read_text())
    config |= {"_name_or_path": TEXT, "torch_dtype": TEXT, TEXT: TEXT, "tie_word_embeddings": True}
    write_model(where, tensors, config, {"format": "pt", TEXT: TEXT})
    hostile = {word if word in ("New", "York") else f"{TEXT}{i}": i for i, word in enumerate(WORDS)}
    tokenizer["model"] |= {"vocab": hostile, "unk_token": f"{TEXT}0"}
    (where / "tokenizer.json").write_text(json.dumps(tokenizer))
    return where
