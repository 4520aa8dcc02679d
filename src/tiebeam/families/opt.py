"""OPT: parameter count. Learned positions (two more than the context); opt-350m's embedding is narrower than it."""

from __future__ import annotations

from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family
from tiebeam.families.parameter_count import linear, norm, two_layer_mlp


def parameters(f: Fields) -> int:
    D, bias = f.count("hidden_size"), f.flag("enable_bias")
    narrow = f.count_or("word_embed_proj_dim", D)
    one_norm = norm(D) if f.flag("layer_norm_elementwise_affine") else 0
    layer = 4 * linear(D, D, bias) + two_layer_mlp(D, f.count("ffn_dim"), bias) + 2 * one_norm
    projections = 2 * narrow * D if narrow != D else 0
    final_norm = one_norm if f.flag("do_layer_norm_before") and not f.flag("_remove_final_layer_norm") else 0
    return (f.count("max_position_embeddings") + 2) * D + projections + f.layers() * layer + final_norm


FAMILIES = (
    Family(
        "opt",
        "OPTForCausalLM",
        defaults={
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
            "do_layer_norm_before": True,
            "max_position_embeddings": 2048,
        },
        non_embedding=parameters,
    ),
)
