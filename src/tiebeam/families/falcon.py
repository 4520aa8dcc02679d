"""Falcon: parameter count. One key/value head (7B) or groups of them (40B), attention and MLP in parallel."""

from __future__ import annotations

from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family
from tiebeam.families.parameter_count import linear, norm, two_layer_mlp


def parameters(f: Fields) -> int:
    D, heads, bias = f.count("hidden_size"), f.count("num_attention_heads"), f.flag("bias")
    head_dim, grouped = D // heads, f.flag("new_decoder_architecture")
    if grouped:
        fused = (f.count_or("num_kv_heads", heads) * 2 + heads) * head_dim
    else:
        fused = D + 2 * head_dim if f.flag("multi_query") else 3 * D
    two_norms = not f.flag("parallel_attn") or f.count_or("num_ln_in_parallel_attn", 2 if grouped else 1) == 2
    layer = linear(D, fused, bias) + linear(D, D, bias)
    layer += two_layer_mlp(D, f.count_or("ffn_hidden_size", 4 * D), bias) + (2 if two_norms else 1) * norm(D)
    return f.layers() * layer + norm(D)


FAMILIES = (
    Family(
        "falcon",
        "FalconForCausalLM",
        defaults={"multi_query": True, "parallel_attn": True},
        non_embedding=parameters,
    ),
)
