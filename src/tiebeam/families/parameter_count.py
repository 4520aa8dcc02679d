"""config.json -> the exact number of parameters, for architectures whose config alone fixes it.

The trunk is everything but the two vocabulary matrices: layers, norms, learned positions, and the head's
bias where there is one, for a bias stays when the matrices are tied. So tied = trunk + matrix and
untied = trunk + 2 x matrix, always; an encoder-decoder's shared input table counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tiebeam.families.parameter_formulas import HEAD_BIAS, TRUNKS, WIDTH_KEYS, Sizes, Unclear, first


@dataclass(frozen=True, slots=True)
class Counted:
    """Unique parameters. `head_bias` is a part of `trunk`, not beside it."""

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
    """The parameters of the language model that `config` describes; None when the config alone does not tell."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in TRUNKS:
        return None
    c = Sizes(config)
    try:
        trunk = TRUNKS[model_type](c)
        vocab = c.size("vocab_size")
        dim = first(c, *WIDTH_KEYS.get(model_type, ("hidden_size",)))
    except Unclear:
        return None
    bias = vocab if model_type in HEAD_BIAS else 0
    matrix, trunk = vocab * dim, trunk + bias
    return Counted(model_type, vocab, dim, matrix, trunk, bias, trunk + matrix, trunk + 2 * matrix)


def countable_types() -> tuple[str, ...]:
    """The model types that `count_from_config` knows."""
    return tuple(TRUNKS)
