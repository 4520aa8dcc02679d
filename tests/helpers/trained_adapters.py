"""Adapters that the real PEFT trained and saved, beside their base: tiny models, every parameter moved."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from helpers.lively_models import lively

TOKENS = torch.arange(1, 40)[None]
SCALE = 0.05


@dataclass(frozen=True)
class Trained:
    """An adapter and its base on disk, and the logits [T, V] of PEFT's live model."""

    adapter: Path
    base: Path
    logits: np.ndarray
    model: Any


def train_adapter(
    where: Path, family: str = "llama", *, tied: bool = True, dtype: Any = torch.float32, grow: int = 0,
    name: str = "adapter", shard: str | None = None, seed: int = 1, built: Callable[[], Any] | None = None,
    config: Any = None, scale: float = SCALE, **lora: Any,
) -> Trained:  # fmt: skip
    """Save a base and a trained adapter under `where`; `scale`: how far; `lora` are arguments of LoraConfig."""
    import peft

    base = where / "base"
    model = (built() if built else lively(family, tie_word_embeddings=tied)).to(dtype)
    if not base.exists():
        model.save_pretrained(base, **({"max_shard_size": shard} if shard else {}))
    model.name_or_path = str(base)
    model.config._name_or_path = str(base)
    if grow:
        model.resize_token_embeddings(model.config.vocab_size + grow, mean_resizing=False)
    settings = config or peft.LoraConfig(
        **{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), **lora}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        live = peft.get_peft_model(model, settings, autocast_adapter_dtype=False).eval()
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in live.parameters():
                if parameter.requires_grad:
                    parameter.add_((torch.randn(parameter.shape) * scale).to(parameter.dtype))
        live.save_pretrained(where / name)
    return Trained(where / name, base, live_logits(live), live)


def live_logits(model: Any) -> np.ndarray:  # -> [T, V]
    """In float32, so that only the weights' own rounding counts."""
    with torch.no_grad():
        return model.float()(TOKENS).logits[0].numpy()


def loaded_logits(path: Path) -> np.ndarray:  # -> [T, V]
    """Of the model that transformers loads from `path`."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(TOKENS).logits[0].numpy()
