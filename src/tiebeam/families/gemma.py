"""Gemma 1, 2 and 3 (text): the embedding is scaled by sqrt(dim), norms store w - 1, the MLP is gated with GELU.

Gemma 2 adds norms after attention and MLP, softcaps and sliding layers; Gemma 3 replaces the softcaps by norms of
queries and keys and gives its sliding layers a rotary base of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiebeam.families import gguf, llama
from tiebeam.families.config_fields import FULL, SLIDING, Fields, layer_kinds, read_rope
from tiebeam.families.family import Family, Gguf
from tiebeam.families.spec import Scales, Spec

NAMES = replace(llama.NAMES, norm_offset=1.0)
POST_NORM_NAMES = replace(
    NAMES,
    roles={
        **NAMES.roles,
        "attn_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
)
_COMMON = {
    **llama.DEFAULTS,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "vocab_size": 256000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
}
_GEMMA2 = {
    **_COMMON,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}


def scales(f: Fields) -> Scales:
    """The input is scaled by sqrt(hidden_size), the head is not: both read the raw table."""
    return Scales(input=f.count("hidden_size") ** 0.5, softcap=f.number_or_none("final_logit_softcapping"))


def gemma_spec(f: Fields) -> Spec:
    activation = f.text("hidden_act")
    if activation == "gelu":
        activation = "gelu_pytorch_tanh"  # the first Gemma configs write "gelu" but use this
    return replace(llama.spec(f), activation=activation, scales=scales(f))


def gemma2_spec(f: Fields) -> Spec:
    kinds = layer_kinds(f, lambda i: i % 2 == 0)
    return replace(
        llama.spec(f, kinds, scale=_query_scale(f)),
        activation=f.text("hidden_activation"),
        post_norms=True,
        attention_cap=f.number_or_none("attn_logit_softcapping"),
        scales=scales(f),
    )


def gemma3_spec(f: Fields) -> Spec:
    every = f.count("sliding_window_pattern")
    kinds = layer_kinds(f, lambda i: (i + 1) % every != 0)
    head_dim = llama.head_dim_of(f)
    rope = {
        FULL: read_rope(f, head_dim, FULL),
        SLIDING: read_rope(f, head_dim, SLIDING, theta_key="rope_local_base_freq"),
    }
    return replace(
        llama.spec(f, kinds, rope, _query_scale(f)),
        activation=f.text("hidden_activation"),
        post_norms=True,
        qk_norm="head",
        scales=scales(f),
    )


def _query_scale(f: Fields) -> float:
    scale: float = (f.number_or_none("query_pre_attn_scalar") or llama.head_dim_of(f)) ** -0.5
    return scale


def _gguf_query_scale(config: dict[str, Any], largest: int) -> dict[str, Any]:
    """GGUF leaves the query scale out: llama.cpp uses the head dimension, except in the largest model."""
    if "head_dim" not in config:
        return {}
    if config.get("num_hidden_layers") == largest:
        return {"query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]}
    return {"query_pre_attn_scalar": config["head_dim"]}


_GGUF_KEYS = {
    **gguf.KEYS,
    "sliding_window": "attention.sliding_window",
    "rope_local_base_freq": "rope.freq_base_swa",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}

# The converter adds 1 to norm weights, so GGUF names have no norm_offset.
FAMILIES = (
    Family(
        model_type="gemma",
        architecture="GemmaForCausalLM",
        defaults={
            **_COMMON,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
        },
        names=NAMES,
        gguf=Gguf("gemma", gguf.NAMES, gguf.KEYS),
        spec=gemma_spec,
        scales=scales,
    ),
    Family(
        model_type="gemma2",
        architecture="Gemma2ForCausalLM",
        defaults=_GEMMA2,
        names=POST_NORM_NAMES,
        gguf=Gguf(
            "gemma2",
            gguf.NAMES,
            keys=_GGUF_KEYS,
            complete=lambda config: _gguf_query_scale(config, largest=46),
        ),
        spec=gemma2_spec,
        scales=scales,
    ),
    Family(
        model_type="gemma3_text",
        architecture="Gemma3ForCausalLM",
        defaults={
            **_GEMMA2,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "final_logit_softcapping": None,
            "sliding_window_pattern": 6,
        },
        names=POST_NORM_NAMES,
        gguf=Gguf(
            "gemma3",
            gguf.NAMES,
            keys=_GGUF_KEYS,
            complete=lambda config: _gguf_query_scale(config, largest=62),
        ),
        spec=gemma3_spec,
        scales=scales,
    ),
)
