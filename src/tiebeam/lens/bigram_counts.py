"""Bigram counts of a token stream: how often b follows a.

A pair is one number a*V + b. While there are few cells for the pairs, each pair is counted into its cell; beyond
that the pairs of a block are sorted and run lengths taken, then blocks are merged. Both beat numpy.unique
on pairs (bench/bigrams.py).
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
        """The same over a smaller vocabulary: `tokens` become 0..n-1, and every other token becomes n."""
        place = np.full(self.vocab, len(tokens), np.int64)
        place[tokens] = np.arange(len(tokens))
        size = len(tokens) + 1
        codes, index = np.unique(place[self.first] * size + place[self.second], return_inverse=True)
        counts = np.bincount(index, weights=self.count, minlength=len(codes)).astype(np.int64)
        return Bigrams(size, codes // size, codes % size, counts)


def count_bigrams(tokens: NDArray[np.integer], vocab: int, separator: int | None = None) -> Bigrams:
    """Count pairs of neighbours; a pair that leaves or enters `separator` (a document boundary) is no pair."""
    # Cells that most pairs miss cost more to clear and scan than the pairs cost to sort.
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
    """a*V + b for each pair of neighbours, a block at a time."""
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
