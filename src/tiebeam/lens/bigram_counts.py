"""Bigram counts of a token stream: how often b follows a.

A pair is encoded as one integer a*V + b. For a small vocabulary each pair increments a cell of a dense array. For a
large one the pairs of a block are sorted and counted by run length, and the blocks are merged. Both are faster than
numpy.unique on pairs (bench/bigrams.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DENSE_CELLS = 1 << 25  # 256 MB of 8-byte counters
_FEW_CELLS = 1 << 21
_BLOCK = 1 << 24  # tokens sorted at once


@dataclass(frozen=True, slots=True)
class Bigrams:
    """Sparse counts, sorted by (first, second)."""

    vocab: int
    first: NDArray[np.int64]  # [n]
    second: NDArray[np.int64]  # [n]
    count: NDArray[np.int64]  # [n]

    @property
    def total(self) -> int:
        return int(self.count.sum())

    def dense(self) -> NDArray[np.float32]:  # [V, V]
        matrix = np.zeros((self.vocab, self.vocab), np.float32)
        matrix[self.first, self.second] = self.count
        return matrix

    def keep(self, tokens: NDArray[np.int64]) -> Bigrams:
        """Counts over a smaller vocabulary: `tokens` become 0..n-1, and every other token becomes n."""
        place = np.full(self.vocab, len(tokens), np.int64)
        place[tokens] = np.arange(len(tokens))
        size = len(tokens) + 1
        codes, index = np.unique(place[self.first] * size + place[self.second], return_inverse=True)
        counts = np.bincount(index, weights=self.count, minlength=len(codes)).astype(np.int64)
        return Bigrams(size, codes // size, codes % size, counts)


def count_bigrams(tokens: NDArray[np.integer], vocab: int, separator: int | None = None) -> Bigrams:
    """Count pairs of neighbouring tokens. Pairs with `separator` (a document boundary) are not counted.

    count_bigrams(np.array([0, 1, 0, 1]), vocab=2).dense()      # [[0, 2], [1, 0]]
    """
    # With many more cells than pairs, clearing and scanning the cells costs more than sorting the pairs.
    if vocab * vocab <= min(_DENSE_CELLS, max(_FEW_CELLS, 4 * len(tokens))):
        cells = np.zeros(vocab * vocab, np.int64)
        for codes in _pair_codes(tokens, vocab, separator, np.dtype(np.int64), min(_BLOCK, 1 << 18)):
            np.add.at(cells, codes, 1)
        found = np.flatnonzero(cells)
        return Bigrams(vocab, found // vocab, found % vocab, cells[found])
    pairs, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    narrow = np.dtype(np.uint32 if vocab * vocab <= 1 << 32 else np.int64)  # half the bytes sort in half the time
    for codes in _pair_codes(tokens, vocab, separator, narrow, _BLOCK):
        codes.sort()
        edges = np.concatenate(([0], np.flatnonzero(codes[1:] != codes[:-1]) + 1)) if len(codes) else np.empty(0, int)
        runs = np.diff(edges, append=len(codes))
        merged, index = np.unique(np.concatenate([pairs, codes[edges].astype(np.int64)]), return_inverse=True)
        counts = np.bincount(index, weights=np.concatenate([counts, runs]), minlength=len(merged)).astype(np.int64)
        pairs = merged
    return Bigrams(vocab, pairs // vocab, pairs % vocab, counts)


def _pair_codes(
    tokens: NDArray[np.integer], vocab: int, separator: int | None, dtype: np.dtype[Any], block: int
) -> Iterator[NDArray[Any]]:
    """a*V + b for each pair of neighbours, block by block."""
    for start in range(0, len(tokens) - 1, block):
        run = tokens[start : start + block + 1]
        codes = run[:-1].astype(dtype)
        codes *= dtype.type(vocab)
        codes += run[1:].astype(dtype, copy=False)
        if separator is not None:
            edge = run == separator
            if edge.any():
                codes = codes[~(edge[:-1] | edge[1:])]
        yield codes
