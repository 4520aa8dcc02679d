"""Tiny models of every class that transformers builds with a tied pair, saved, loaded again and run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from helpers.forward_inputs import forward_inputs
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


# The sections of multimodal rotary embeddings that these take when their config names none fit no small head.
_SECTIONS = {"glm4v", "glm46v", "glm4v_moe", "glm_ocr", "glmga", "paddleocr_vl", "qwen2_5_omni_thinker"}


def _fit(config: Any) -> None:
    """Sizes with which the forward pass runs, where the small ones of `tiny_config` do not fit together."""
    text = config.get_text_config()
    for key in ("src_vocab_size", "tgt_vocab_size"):
        if hasattr(config, key):
            setattr(config, key, tiny.VOCAB)
    kinds = getattr(text, "layer_types", None)
    if kinds and set(kinds) == {"linear_attention"}:
        text.layer_types = [*kinds[:-1], "full_attention"]
    rope = getattr(text, "rope_parameters", None)
    if isinstance(rope, dict) and ("mrope_section" in rope or config.model_type in _SECTIONS):
        half = int((getattr(text, "head_dim", None) or 8) * rope.get("partial_rotary_factor", 1.0)) // 2
        rope["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
    if hasattr(text, "kv_lora_rank"):  # multi-head latent attention: keys and values have every head
        text.num_key_value_heads = text.num_attention_heads
    if config.model_type == "mistral4":
        text.head_dim = text.qk_nope_head_dim + text.qk_rope_head_dim
    if config.model_type == "ernie4_5_moe":
        config.moe_k = 2
    if config.model_type == "deepseek_v2":
        config.num_experts_per_tok = 2
    if config.model_type == "step3p7":
        text.sliding_window = 8
    if config.model_type == "xmod":
        config.default_language = config.languages[0]
    if hasattr(config, "qformer_config"):
        config.num_query_tokens = 4
        config.image_token_id = config.image_token_index = config.video_token_id = config.video_token_index = 5


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
    """Logits on fixed inputs."""
    import torch

    inputs = forward_inputs(model)
    with torch.no_grad():
        torch.manual_seed(2)
        return model(**inputs).logits
