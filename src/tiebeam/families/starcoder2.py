"""StarCoder 2: parameter count. LayerNorm, biases everywhere, an MLP without a gate."""

from __future__ import annotations

from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family
from tiebeam.families.parameter_count import attention, norm, two_layer_mlp


def parameters(f: Fields) -> int:
    D, bias = f.count("hidden_size"), f.flag("use_bias")
    layer = attention(f, f.count_or("head_dim", D // f.count("num_attention_heads")), bias)
    layer += two_layer_mlp(D, f.count("intermediate_size"), bias) + 2 * norm(D)
    return f.layers() * layer + norm(D)


FAMILIES = (
    Family(
        "starcoder2",
        "Starcoder2ForCausalLM",
        defaults={"use_bias": True, "num_key_value_heads": 2},
        non_embedding=parameters,
    ),
)
