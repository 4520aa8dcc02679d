"""StableLM: parameter count. LayerNorm, optional biases on q, k, v, optional norms of queries and keys."""

from __future__ import annotations

from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family
from tiebeam.families.parameter_count import attention, gated_mlp, norm


def parameters(f: Fields) -> int:
    D, heads = f.count("hidden_size"), f.count("num_attention_heads")
    head_dim = D // heads
    layer = attention(f, head_dim, f.flag("use_qkv_bias"), out_bias=False)
    if f.flag("qk_layernorm"):
        layer += (heads + f.count("num_key_value_heads")) * head_dim
    layer += gated_mlp(D, f.count("intermediate_size"))
    layer += (1 if f.flag("use_parallel_residual") else 2) * norm(D)
    return f.layers() * layer + norm(D)


FAMILIES = (Family("stablelm", "StableLmForCausalLM", defaults={"num_key_value_heads": 32}, non_embedding=parameters),)
