"""Attention of new positions to the cached ones."""

from __future__ import annotations

from tiebeam.decode.numpy.ops import Array, softcap, softmax
from tiebeam.decode.numpy.threads import for_row_blocks


def attention(
    q: Array, k: Array, v: Array, mask: Array | None, cap: float | None
) -> Array:  # [T, H, N], [K, S, N], [K, S, N], [T, S] -> [T, H * N]
    """Queries are already scaled; G of them use one key/value head."""
    (T, H, N), (K, S, _) = q.shape, k.shape
    G = H // K
    if T == 1:  # one product per query: BLAS is slow at products of a few rows
        scores = q.reshape(K, G, 1, N) @ k[:, None].transpose(0, 1, 3, 2)  # [K, G, 1, S]
    else:
        rows = q.reshape(T, K, G, N).transpose(1, 2, 0, 3).reshape(K, G * T, N)
        scores = rows @ k.transpose(0, 2, 1)  # [K, G*T, S]

    def to_probabilities_(scores: Array) -> None:  # [heads, T, S]
        if cap is not None:
            softcap(scores, cap)
        if mask is not None:
            scores += mask
        softmax(scores)

    for_row_blocks(to_probabilities_, scores.reshape(H, T, S))
    mixed = scores.reshape(K, G * T, S) @ v  # [K, G*T, N]
    return mixed.reshape(K, G, T, N).transpose(2, 0, 1, 3).reshape(T, H * N)
