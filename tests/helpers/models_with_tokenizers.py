"""Tiny models of transformers saved with a tokenizer of theirs, as transformers 5 or 4 writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers.lively_models import lively
from helpers.tiny_models import build
from helpers.tiny_tokenizers import write_tokenizer

TOKENS = ["<think>", "</think>"]


def save_with_tokenizer(
    where: Path, model_type: str = "llama", ids: int = 300, rows: int | None = None, **options: Any
) -> Any:
    """A model with `rows` rows (as many as ids) and a byte-level tokenizer of `ids` ids; returns the model."""
    import transformers

    make = lively if model_type in ("llama", "gpt2", "qwen2") else build
    model = make(model_type, vocab_size=rows or ids, **options)
    model.save_pretrained(where)
    write_tokenizer(where, ids)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(where / "tokenizer.json"), bos_token="<s>")
    tokenizer.save_pretrained(where)
    return model


def as_transformers_4(where: Path) -> None:
    """Rewrite the tokenizer's small files as transformers 4.57 does."""
    added = json.loads((where / "tokenizer.json").read_text())["added_tokens"]
    decoder = {str(entry["id"]): {k: v for k, v in sorted(entry.items()) if k != "id"} for entry in added}
    config = {
        "added_tokens_decoder": decoder,
        "additional_special_tokens": [],
        "bos_token": "<s>",
        "extra_special_tokens": {},
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (where / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    (where / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>"}, indent=2))
    (where / "added_tokens.json").write_text("{}")
