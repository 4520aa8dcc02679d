"""Llama and Mistral: RMSNorm before attention and MLP, rotary positions, grouped queries, a gated SiLU MLP.

Most later families are this with a few changes, and start from `spec` and `NAMES` here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiebeam.families import gguf
from tiebeam.families.config_fields import (
    FULL,
    SLIDING,
    Fields,
    all_full,
    attention_layers,
    divide_heads,
    read_rope,
)
from tiebeam.families.family import Family, Gguf, TensorNames
from tiebeam.families.spec import Rope, Spec

NAMES = TensorNames(
    prefix="model.",
    embed="embed_tokens.weight",
    head="lm_head.weight",
    final_norm="norm",
    layer="layers.{i}.",
    roles={
        "attn_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
        "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    },
)
DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10_000.0,
    "attention_bias": False,
    "mlp_bias": False,
}


def spec(
    f: Fields,
    kinds: Sequence[str] | None = None,
    rope: Mapping[str, Rope | None] | None = None,
    scale: float | None = None,
) -> Spec:
    """`kinds`: full or sliding attention, for each layer. `rope`: by kind. `scale`: of the attention scores."""
    dim, heads = f.count("hidden_size"), f.count("num_attention_heads")
    head_dim = head_dim_of(f)
    if rope is None:
        rope = dict.fromkeys((FULL, SLIDING), read_rope(f, head_dim))
    scale = head_dim**-0.5 if scale is None else scale
    layers = attention_layers(f, all_full(f) if kinds is None else kinds, rope, scale)
    return Spec(
        family=f.text("model_type"),
        vocab=f.count("vocab_size"),
        dim=dim,
        heads=heads,
        kv_heads=f.count_or("num_key_value_heads", heads),
        head_dim=head_dim,
        mlp=f.count("intermediate_size"),
        context=f.count("max_position_embeddings"),
        layers=layers,
        eps=f.number("rms_norm_eps"),
        activation=f.text("hidden_act"),
        qkv_bias=f.bias("attention_bias"),
        out_bias=f.bias("attention_bias"),
        mlp_bias=f.bias("mlp_bias"),
    )


def head_dim_of(f: Fields) -> int:
    given = f.count_or_none("head_dim")
    return given or divide_heads(f, f.count("hidden_size"), f.count("num_attention_heads"))


def mistral_spec(f: Fields) -> Spec:
    """Every layer slides, if any does."""
    return spec(f, all_full(f) if f.get("sliding_window") is None else [SLIDING] * f.layers())


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    defaults=DEFAULTS,
    names=NAMES,
    gguf=Gguf("llama", gguf.PAIRED_ROTARY_NAMES, gguf.KEYS),
    spec=spec,
)
MISTRAL = Family(  # its GGUF files call themselves llama
    model_type="mistral",
    architecture="MistralForCausalLM",
    defaults={
        **DEFAULTS,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    names=NAMES,
    spec=mistral_spec,
)
FAMILIES = (LLAMA, MISTRAL)
