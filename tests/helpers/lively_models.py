"""Tiny models for comparison with the real transformers; their weights make a missing part change the logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from helpers.tiny_models import VOCAB, build

TOLERANCE = 2e-4  # of float32 logits of order 1 to 30

OPTIONS: dict[str, dict[str, float]] = {
    "cohere2": {"logit_scale": 4.0},
    "granite": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.4,
        "residual_multiplier": 0.3,
        "logits_scaling": 0.5,
    },
}  # factors away from 1, and logits large enough to compare


def lively(model_type: str, **changes: Any) -> Any:
    """A tiny random model with norms away from 1, biases away from 0, and attention away from uniform."""
    import torch

    # head_dim is not hidden_size / heads, so that nothing can pass by taking one for the other
    sizes: dict[str, Any] = {} if model_type in ("gpt2", "gpt_neox", "phi3") else {"head_dim": 16}
    sizes |= OPTIONS.get(model_type, {})
    model = build(model_type, attn_implementation="eager", **{**sizes, **changes})
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.add_(torch.randn_like(p) * 0.2)
            else:
                p.mul_(6.0 if "emb" not in name and "wte" not in name else 2.0)
    return model


def sentence(length: int, vocab: int = VOCAB, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab, length)


def save(model: Any, where: Path, dtype: Any = None) -> Path:
    (model.to(dtype) if dtype is not None else model).save_pretrained(where)
    return where


def reference(model: Any, tokens: np.ndarray) -> np.ndarray:  # [T] -> [T, V]
    import torch

    with torch.no_grad():
        return model.float()(torch.from_numpy(tokens)[None]).logits[0].numpy()
