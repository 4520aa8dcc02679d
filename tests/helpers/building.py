"""Tiny real models for the tests, written by the real libraries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

VOCAB, DIM = 40, 8


def table(seed: int = 0, vocab: int = VOCAB, dim: int = DIM) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((vocab, dim)).astype(np.float32)


def llama_config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": DIM,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        **changes,
    }


def write_model(
    where: Path,
    tensors: Mapping[str, np.ndarray],
    config: Mapping[str, Any] | None,
    metadata: dict[str, str] | None = None,
) -> Path:
    """A Hugging Face style directory with one safetensors file."""
    where.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), where / "model.safetensors", metadata=metadata)
    if config is not None:
        (where / "config.json").write_text(json.dumps(config))
    return where


def write_sharded(where: Path, shards: Sequence[Mapping[str, np.ndarray]], config: Mapping[str, Any] | None) -> Path:
    """A Hugging Face style directory with several shards and their index."""
    where.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    for i, tensors in enumerate(shards, 1):
        name = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        save_file(dict(tensors), where / name)
        weight_map |= dict.fromkeys(tensors, name)
    (where / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    if config is not None:
        (where / "config.json").write_text(json.dumps(config))
    return where
