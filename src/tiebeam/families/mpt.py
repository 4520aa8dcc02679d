"""MPT: parameter count. No biases; transformers ignores expansion_ratio."""

from __future__ import annotations

from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family
from tiebeam.families.parameter_count import linear, norm, two_layer_mlp


def parameters(f: Fields) -> int:
    D = f.count("d_model")
    layer = linear(D, 3 * D) + linear(D, D) + two_layer_mlp(D, 4 * D) + 2 * norm(D, bias=False)
    return f.layers("n_layers") * layer + D


FAMILIES = (Family("mpt", "MptForCausalLM", non_embedding=parameters),)
