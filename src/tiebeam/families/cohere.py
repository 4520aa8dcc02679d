"""Cohere (Command R): parameter count and logit scale. One norm for attention and MLP, which run in parallel."""

from __future__ import annotations

from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family
from tiebeam.families.parameter_count import attention, gated_mlp
from tiebeam.families.spec import Scales


def scales(f: Fields) -> Scales:
    return Scales(logits=f.scale("logit_scale"))


def parameters(f: Fields) -> int:
    D, heads = f.count("hidden_size"), f.count("num_attention_heads")
    head_dim = f.count_or("head_dim", D // heads)
    layer = attention(f, head_dim, f.flag("attention_bias")) + gated_mlp(D, f.count("intermediate_size")) + D
    if f.flag("use_qk_norm"):
        layer += (heads + f.count_or("num_key_value_heads", heads)) * head_dim
    return f.layers() * layer + D


FAMILIES = (
    Family("cohere", "CohereForCausalLM", defaults={"logit_scale": 0.0625}, scales=scales, non_embedding=parameters),
)
