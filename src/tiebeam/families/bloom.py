"""BLOOM: parameter count. A LayerNorm follows the embedding; positions are ALiBi and have no parameters."""

from __future__ import annotations

from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family
from tiebeam.families.parameter_count import linear, norm, two_layer_mlp


def parameters(f: Fields) -> int:
    D = f.first("n_embed", "hidden_size")
    layer = linear(D, 3 * D, bias=True) + linear(D, D, bias=True) + two_layer_mlp(D, 4 * D, bias=True) + 2 * norm(D)
    return norm(D) + f.first("n_layer", "num_hidden_layers") * layer + norm(D)


FAMILIES = (Family("bloom", "BloomForCausalLM", non_embedding=parameters),)
