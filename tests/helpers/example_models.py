"""The models and the text that the examples in README and docs are run on."""

from __future__ import annotations

import logging
from pathlib import Path

from helpers.tiny_models import build


def write_examples(where: Path) -> Path:
    """tied: a healthy model. merged: declared tied, but with a different LM head. text: forty small files."""
    from safetensors.torch import load_file, save_file

    logging.getLogger("transformers").setLevel(logging.ERROR)
    build("qwen2", tie_word_embeddings=True).save_pretrained(where / "tied")
    build("llama", tie_word_embeddings=True).save_pretrained(where / "merged")
    tensors = load_file(where / "merged" / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 1.5
    save_file(tensors, where / "merged" / "model.safetensors", {"format": "pt"})
    (where / "text").mkdir()
    for i in range(40):
        (where / "text" / f"{i}.txt").write_text(f"The {i}th cat sat on the mat, and the dog ran {i * 3} miles. " * 30)
    return where
