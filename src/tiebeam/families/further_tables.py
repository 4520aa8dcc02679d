"""Tables beside embedding and head that have the vocabulary as a dimension, as far as a config tells.

Gemma 3n and 4 have one embedding per layer, stored as one wide table. DeepSeek's multi-token-prediction layers store an
embedding and a head of their own. A draft model's head scores the `draft_vocab_size` most frequent tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tiebeam.families.registry import lookup, text_level, vocabulary, width


@dataclass(frozen=True, slots=True)
class FurtherTable:
    """A [rows, dim] table."""

    kind: str
    rows: int
    dim: int

    @property
    def params(self) -> int:
        return self.rows * self.dim

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "params": self.params}


def further_tables(config: Mapping[str, Any]) -> tuple[FurtherTable, ...]:
    """The tables that `config` describes.

    >>> config = {"vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "num_hidden_layers": 35}
    >>> further_tables(config)
    (FurtherTable(kind='per-layer embedding', rows=262144, dim=8960),)
    """
    model_type = config.get("model_type")
    architecture = lookup(model_type if isinstance(model_type, str) else None)
    level, _ = text_level(config, architecture)

    def size(key: str) -> int:
        value = level.get(key, config.get(key))
        return value if type(value) is int and 0 < value < 1 << 31 else 0

    found = []
    V, D = vocabulary(config, architecture) or 0, width(config, architecture) or 0
    per_layer = size("hidden_size_per_layer_input") * size("num_hidden_layers")
    if per_layer and size("vocab_size_per_layer_input"):
        found.append(FurtherTable("per-layer embedding", size("vocab_size_per_layer_input"), per_layer))
    if size("num_nextn_predict_layers") and V and D and str(model_type).startswith("deepseek"):
        for _ in range(min(size("num_nextn_predict_layers"), 16)):
            found += [FurtherTable("MTP embedding", V, D), FurtherTable("MTP head", V, D)]
    if size("draft_vocab_size") and D:
        found.append(FurtherTable("draft head", size("draft_vocab_size"), D))
    return tuple(found)
