"""OLMo 1: parameter count. Its norms have no weights."""

from __future__ import annotations

from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family
from tiebeam.families.parameter_count import attention, gated_mlp


def parameters(f: Fields) -> int:
    D = f.count("hidden_size")
    heads = attention(f, D // f.count("num_attention_heads"), f.flag("attention_bias"))
    return f.layers() * (heads + gated_mlp(D, f.count("intermediate_size")))


FAMILIES = (Family("olmo", "OlmoForCausalLM", non_embedding=parameters),)
