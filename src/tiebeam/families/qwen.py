"""Qwen 2 and 3: Llama with biases on q, k and v (2) or norms of queries and keys (3); some layers may slide."""

from __future__ import annotations

from dataclasses import replace

from tiebeam.families import gguf, llama
from tiebeam.families.config_fields import Fields, layer_kinds
from tiebeam.families.family import Family, Gguf
from tiebeam.families.spec import Spec

DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def qwen2_spec(f: Fields) -> Spec:
    return replace(llama.spec(f, _kinds(f)), qkv_bias=True, out_bias=False)


def qwen3_spec(f: Fields) -> Spec:
    return replace(llama.spec(f, _kinds(f)), qk_norm="head")


def _kinds(f: Fields) -> list[str]:
    """The layers from max_window_layers on slide, if any do."""
    slides = f.flag("use_sliding_window") and f.get("sliding_window") is not None
    first = f.number("max_window_layers")
    return layer_kinds(f, lambda i: slides and i >= first)


_GGUF_KEYS = {**gguf.KEYS, "sliding_window": "attention.sliding_window"}

FAMILIES = (
    Family(
        model_type="qwen2",
        architecture="Qwen2ForCausalLM",
        defaults=DEFAULTS,
        names=llama.NAMES,
        gguf=Gguf("qwen2", gguf.NAMES, _GGUF_KEYS, biases=()),
        spec=qwen2_spec,
    ),
    Family(
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        defaults={**DEFAULTS, "head_dim": 128},
        names=llama.NAMES,
        gguf=Gguf("qwen3", gguf.NAMES, _GGUF_KEYS),
        spec=qwen3_spec,
    ),
)
