"""Bigram counts of a token stream: how often b follows a.

A pair is encoded as one integer a*V + b. The pairs of a block are sorted and counted by run length, because a sort
reads memory in order and NumPy sorts 32-bit integers with vector instructions; only a table of counts that fits in the
cache is faster. bench/bigrams.py measures both against numpy.unique on pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CACHED_CELLS = 1 << 16  # 512 KB of 8-byte counters, which stay in the cache of a core
_DENSE_CELLS = 1 << 25  # 256 MB of 8-byte counters
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
    cells = vocab * vocab
    if cells <= _CACHED_CELLS:
        table = np.zeros(cells, np.int64)
        for codes in _pair_codes(tokens, vocab, separator, np.dtype(np.int64), min(_BLOCK, 1 << 18)):
            np.add.at(table, codes, 1)
        return _from_table(table, vocab)
    narrow = np.dtype(np.uint32 if cells <= 1 << 32 else np.int64)  # half the bytes sort in half the time
    blocks = (_run_lengths(codes) for codes in _pair_codes(tokens, vocab, separator, narrow, _BLOCK))
    if len(tokens) - 1 > _BLOCK and cells <= _DENSE_CELLS:  # several blocks: adding to a table is cheaper than a merge
        table = np.zeros(cells, np.int64)
        for pairs, counts in blocks:
            table[pairs] += counts  # a pair occurs once in a block
        return _from_table(table, vocab)
    pairs, counts = np.empty(0, narrow), np.empty(0, np.int64)
    for more, runs in blocks:
        pairs, counts = _merge(pairs, counts, more, runs) if len(pairs) else (more, runs)
    return _from_pairs(pairs, counts, vocab)


def _run_lengths(codes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:  # [N] -> [n], [n]
    """The distinct codes in order, and how often each occurs; sorts `codes` in place."""
    if not len(codes):
        return codes, np.empty(0, np.int64)
    codes.sort()
    last = np.append(np.flatnonzero(codes[1:] != codes[:-1]), len(codes) - 1)
    return codes[last], np.diff(last, prepend=-1)


def _merge(
    pairs: NDArray[Any], counts: NDArray[np.int64], more: NDArray[Any], runs: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    merged, index = np.unique(np.concatenate([pairs, more]), return_inverse=True)
    weights = np.concatenate([counts, runs])
    return merged, np.bincount(index, weights=weights, minlength=len(merged)).astype(np.int64)


def _from_table(table: NDArray[np.int64], vocab: int) -> Bigrams:  # [V * V]
    found = np.flatnonzero(table != 0)  # NumPy finds the nonzero booleans several times faster than the integers
    return _from_pairs(found, table[found], vocab)


def _from_pairs(pairs: NDArray[Any], counts: NDArray[np.int64], vocab: int) -> Bigrams:
    first = pairs // pairs.dtype.type(vocab)
    second = pairs - first * pairs.dtype.type(vocab)
    return Bigrams(vocab, first.astype(np.int64), second.astype(np.int64), counts)


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
