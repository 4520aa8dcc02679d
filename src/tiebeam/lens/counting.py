"""Bigram counts of a token stream: how often b follows a.

A pair is one number a*V + b. While the V*V cells fit in memory each pair is counted into its cell; beyond
that the pairs of a block are sorted and run lengths taken, then blocks are merged. Both beat numpy.unique
on pairs (bench/bigrams.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DENSE_CELLS = 1 << 25  # 256 MB of 8-byte counters


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
    if vocab * vocab <= _DENSE_CELLS:
        cells = np.zeros(vocab * vocab, np.int64)
        for codes in _pair_codes(tokens, vocab, separator, block=1 << 18):
            np.add.at(cells, codes, 1)
        found = np.flatnonzero(cells)
        return Bigrams(vocab, found // vocab, found % vocab, cells[found])
    pairs, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for codes in _pair_codes(tokens, vocab, separator, block=1 << 24):
        codes.sort()
        edges = np.flatnonzero(np.diff(codes, prepend=-1))
        runs = np.diff(edges, append=len(codes))
        merged, index = np.unique(np.concatenate([pairs, codes[edges]]), return_inverse=True)
        counts = np.bincount(index, weights=np.concatenate([counts, runs]), minlength=len(merged)).astype(np.int64)
        pairs = merged
    return Bigrams(vocab, pairs // vocab, pairs % vocab, counts)


def _pair_codes(
    tokens: NDArray[np.integer], vocab: int, separator: int | None, block: int
) -> Iterator[NDArray[np.int64]]:
    """a*V + b for each pair of neighbours, a block at a time: small blocks stay in the cache."""
    for start in range(0, len(tokens) - 1, block):
        run = tokens[start : start + block + 1]
        codes = run[:-1].astype(np.int64)
        codes *= vocab
        codes += run[1:]
        if separator is not None:
            edge = run == separator
            if edge.any():
                codes = codes[~(edge[:-1] | edge[1:])]
        yield codes
