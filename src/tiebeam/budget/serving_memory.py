"""Memory of a running model beside its weights: the KV cache, and the peak of the logits. Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LOGIT_BYTES = 4  # losses and samplers compute in float32


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """What one layer caches: `width` values per token, keys and values together, for the last `window` tokens."""

    width: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KVCache:
    """The cache of one sequence, in values of `value_bytes` bytes (2: bf16)."""

    layers: tuple[AttentionLayer, ...]
    value_bytes: int = 2

    @property
    def bytes_per_token(self) -> int:
        """What each further token adds while no window is full."""
        return self.value_bytes * sum(layer.width for layer in self.layers)

    def nbytes(self, context: int) -> int:
        """The cache at `context` tokens; a sliding layer keeps no more than its window.

        >>> KVCache((AttentionLayer(16), AttentionLayer(16, window=4))).nbytes(10)
        448
        """
        kept = (layer.width * min(context, layer.window or context) for layer in self.layers)
        return self.value_bytes * sum(kept)

    def to_dict(self, context: int | None = None) -> dict[str, Any]:
        total = None if context is None else self.nbytes(context)
        return {"bytes_per_token": self.bytes_per_token, "context": context, "bytes": total}


def kv_cache(kv_heads: int, head_dim: int, windows: Sequence[int | None], value_bytes: int = 2) -> KVCache:
    """The KV cache of a decoder with one entry of `windows` per layer; None is a layer that attends to everything."""
    width = 2 * kv_heads * head_dim
    return KVCache(tuple(AttentionLayer(width, window) for window in windows), value_bytes)


def logits_peak(tokens: int, vocab: int) -> int:
    """Bytes of the logits of `tokens` tokens at once, in float32.

    >>> logits_peak(8192, 262_144)
    8589934592
    """
    return tokens * vocab * LOGIT_BYTES
