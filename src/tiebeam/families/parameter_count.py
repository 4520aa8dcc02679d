"""config.json -> the exact number of parameters, for families whose config alone determines it.

Non-embedding parameters are everything but the two vocabulary matrices: layers, norms, learned positions, and
the head's bias where there is one, because a bias stays when the matrices are tied. So
tied = non-embedding + matrix and untied = non-embedding + 2 x matrix, always; the embedding that encoder and
decoder of a sequence-to-sequence model use together counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tiebeam.errors import UnreadableInput
from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family
from tiebeam.families.registry import families, lookup
from tiebeam.families.spec import Spec

# These sizes make a model what it is. A config without them has no count rather than that of the default model.
_ESSENTIAL = frozenset(
    {
        *("vocab_size", "hidden_size", "n_embd", "intermediate_size", "num_hidden_layers", "n_layer"),
        *("num_attention_heads", "num_experts", "moe_intermediate_size"),
    }
)


@dataclass(frozen=True, slots=True)
class Counted:
    """Unique parameters. `trunk` counts the non-embedding parameters; `head_bias` is included in it."""

    model_type: str
    vocab: int
    dim: int
    matrix: int
    trunk: int
    head_bias: int
    total_tied: int
    total_untied: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def count_from_config(config: Mapping[str, Any]) -> Counted | None:
    """The parameters of the language model that `config` describes; None when the config alone is not enough.

    >>> config = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}
    >>> count_from_config(config).total_tied
    124439808
    """
    model_type = config.get("model_type")
    family = families().get(model_type) if isinstance(model_type, str) else None
    architecture = lookup(family.model_type) if family else None
    if family is None or architecture is None:
        return None
    f = essential_fields(config, family)
    try:
        vocab, dim = f.count("vocab_size"), f.first(*architecture.dim_keys)
        if family.spec is not None:
            rest = count_layers(family.spec(f))
        else:
            assert family.non_embedding is not None
            rest = family.non_embedding(f)
    except UnreadableInput:
        return None
    bias = vocab if architecture.head_bias is True else 0
    matrix, rest = vocab * dim, rest + bias
    return Counted(family.model_type, vocab, dim, matrix, rest, bias, rest + matrix, rest + 2 * matrix)


def countable_types() -> tuple[str, ...]:
    """The model types that `count_from_config` knows."""
    return tuple(name for name in families() if lookup(name) is not None)


def essential_fields(config: Mapping[str, Any], family: Family) -> Fields:
    """The config with the family's defaults, except those of the sizes that a real config always has."""
    return Fields(config, {key: value for key, value in family.defaults.items() if key not in _ESSENTIAL})


def count_layers(spec: Spec) -> int:
    """Non-embedding parameters of a decoder: positions, layers, final norm."""
    D, queries, keys = spec.dim, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    attention = linear(D, queries, spec.qkv_bias) + 2 * linear(D, keys, spec.qkv_bias)
    attention += linear(queries, D, spec.out_bias)
    attention += {None: 0, "head": 2 * spec.head_dim, "projection": queries + keys}[spec.qk_norm]
    mlp = gated_mlp if spec.gated else two_layer_mlp
    norms = 2 * spec.pre_norms + 2 * spec.post_norms - spec.one_norm
    total = norm(D, spec.norm_bias) + (spec.context * D if spec.positions else 0)
    for layer in spec.layers:
        total += attention + norms * norm(D, spec.norm_bias)
        if layer.experts is None:
            total += mlp(D, spec.mlp, spec.mlp_bias)
        else:
            total += layer.experts.count * (mlp(D, layer.experts.mlp) + D)
    return total


def linear(inputs: int, outputs: int, bias: bool | None = False) -> int:
    return inputs * outputs + (outputs if bias else 0)


def norm(dim: int, bias: bool = True) -> int:
    return 2 * dim if bias else dim


def gated_mlp(dim: int, inner: int, bias: bool | None = False) -> int:
    return 2 * linear(dim, inner, bias) + linear(inner, dim, bias)


def two_layer_mlp(dim: int, inner: int, bias: bool | None = False) -> int:
    return linear(dim, inner, bias) + linear(inner, dim, bias)


def attention(f: Fields, head_dim: int, bias: bool = False, out_bias: bool | None = None) -> int:
    """Query, key, value and output projections; fewer key/value heads where the config says so."""
    dim, heads = f.count("hidden_size"), f.count("num_attention_heads")
    queries, keys = heads * head_dim, f.count_or("num_key_value_heads", heads) * head_dim
    out_bias = bias if out_bias is None else out_bias
    return linear(dim, queries, bias) + 2 * linear(dim, keys, bias) + linear(queries, dim, out_bias)
