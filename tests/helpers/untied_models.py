"""Tiny models of every class that transformers builds with a tied pair, saved, loaded again and run."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

from peers import tiny_architectures as tiny


def classes() -> list[tuple[str, str]]:
    """(model type, task) for every language model class of transformers; a type can have several."""
    from transformers.models.auto import modeling_auto

    found = []
    for task in tiny.TASKS:
        found += [(model_type, task) for model_type in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")]
    names: dict[Any, tuple[str, str]] = {}
    for model_type, task in found:
        cls = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")[model_type]
        names.setdefault((model_type, str(cls)), (model_type, task))
    return sorted(names.values())


def build(model_type: str, task: str, tied: bool) -> Any:
    import torch
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = tiny.tiny_config(model_type)
        _fit(config)
        tiny.set_flags(config, tied)
        auto = getattr(transformers, tiny.TASKS[task])
        with torch.device("meta"):
            if sum(p.numel() for p in auto.from_config(config).parameters()) > tiny.MOST_PARAMETERS:
                raise ValueError("too large")
        torch.manual_seed(0)
        return auto.from_config(config).eval()


def _fit(config: Any) -> None:
    """Multimodal rotary sections that fit the small heads, and one layer of attention where all would be linear."""
    text = config.get_text_config()
    for key in ("src_vocab_size", "tgt_vocab_size"):
        if hasattr(config, key):
            setattr(config, key, tiny.VOCAB)
    kinds = getattr(text, "layer_types", None)
    if kinds and set(kinds) == {"linear_attention"}:
        text.layer_types = [*kinds[:-1], "full_attention"]
    rope = getattr(text, "rope_parameters", None)
    if isinstance(rope, dict) and "mrope_section" in rope:
        half = int(getattr(text, "head_dim", 8) * rope.get("partial_rotary_factor", 1.0)) // 2
        rope["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]


def is_tied(model: Any) -> bool:
    """Whether embedding and head are one parameter."""
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    weights = getattr(embed, "weight", None), getattr(head, "weight", None)
    if weights[0] is None or weights[1] is None:
        return False
    names = [name for name, p in model.named_parameters(remove_duplicate=False) if p is weights[1]]
    return len(names) > 1


def saved_names(directory: Path) -> set[str]:
    from safetensors import safe_open

    names: set[str] = set()
    for file in directory.glob("*.safetensors"):
        with safe_open(str(file), "pt") as opened:
            names |= set(opened.keys())
    return names


def load(directory: Path, task: str) -> tuple[Any, list[str], list[str]]:
    """The model as transformers loads it, its missing and its unexpected keys."""
    import torch
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        auto = getattr(transformers, tiny.TASKS[task])
        model, info = auto.from_pretrained(directory, output_loading_info=True, dtype=torch.float32)
    return model.eval(), sorted(info["missing_keys"]), sorted(info["unexpected_keys"])


def logits(model: Any) -> Any:
    """Logits on fixed inputs: token ids, and what the class needs beside them."""
    import torch

    takes = inspect.signature(model.forward).parameters
    ids = torch.tensor([[11, 12, 13, 14, 15, 16, 17, 18]])
    inputs: dict[str, Any] = {}
    torch.manual_seed(1)
    if model.main_input_name == "input_features":
        mels = getattr(model.config, "num_mel_bins", None) or getattr(model.config, "input_feat_per_channel", 8)
        shape = (1, mels, 128) if "whisper" in model.config.model_type else (1, 128, mels)
        inputs["input_features"] = torch.randn(shape)
    elif model.main_input_name == "pixel_values" and "input_ids" not in takes:
        inputs["pixel_values"] = torch.randn(1, 3, 28, 28)
    else:
        inputs["input_ids"] = ids
    if "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = ids
    if "use_cache" in takes:
        inputs["use_cache"] = False
    if model.config.model_type == "blip":
        inputs["pixel_values"] = torch.randn(1, 3, 28, 28)
    with torch.no_grad():
        torch.manual_seed(2)
        return model(**inputs).logits
