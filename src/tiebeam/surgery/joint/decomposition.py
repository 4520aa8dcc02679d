"""Weighted sums over rows, their eigenvectors, and the factors. The package docstring has the derivation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Rows = Callable[[int, int], tuple[Array, Array]]
"""(start, stop) -> rows of E and of W, float32 [n, D] each."""

_BLOCK = 1 << 22  # elements in one block of rows
_RIDGE = 1e-6  # relative to the mean, where a table row serves the head alone


@dataclass(frozen=True)
class Moments:
    """E'wE, E'wW and W'wW [D, D] each, and their row weights w [V], which sum to 1."""

    embed: Array
    cross: Array
    head: Array
    weights: Array

    @property
    def dim(self) -> int:
        return int(self.embed.shape[0])


def row_blocks(vocab: int, dim: int) -> Iterator[tuple[int, int]]:
    step = max(1, _BLOCK // (2 * dim))
    return ((start, min(start + step, vocab)) for start in range(0, vocab, step))


def moments_of(rows: Rows, weights: Array, dim: int, progress: Callable[[int], None] = lambda n: None) -> Moments:
    """One pass over the rows in blocks: products in float32 above D = 1024, sums in float64."""
    embed, cross, head = (np.zeros((dim, dim)) for _ in range(3))
    precision = _precision(dim)
    for start, stop in row_blocks(len(weights), dim):
        e, w = rows(start, stop)
        scaled = weights[start:stop, None].astype(precision)
        e, w = e.astype(precision, copy=False), w.astype(precision, copy=False)
        embed += e.T @ (scaled * e)
        cross += e.T @ (scaled * w)
        head += w.T @ (scaled * w)
        progress(stop - start)
    sums = [x.astype(precision, copy=False) for x in (embed, cross, head)]
    return Moments(sums[0], sums[1], sums[2], weights)


def _precision(dim: int) -> type[np.floating[Any]]:
    """float32 for large models: it takes half of the time, and the metric is far from singular."""
    return np.float64 if dim <= 1024 else np.float32


def square_roots(C: Array) -> tuple[Array, Array]:  # [D, D] -> C^1/2, C^-1/2
    values, vectors = np.linalg.eigh(C)
    values = np.maximum(values, values.max() * 1e-12)
    half, precision = np.sqrt(values), _precision(len(C))
    root, inverse_root = (vectors * half) @ vectors.T, (vectors / half) @ vectors.T
    return root.astype(precision, copy=False), inverse_root.astype(precision, copy=False)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues [2D], largest first, and eigenvectors [2D, 2D] as columns, for one balance and one metric."""

    values: Array
    vectors: Array
    balance: float
    root: Array
    inverse_root: Array

    def factors(self, rank: int, exact: Array | None = None) -> Factors:
        """`exact` are the ids of the rows whose embedding is stored beside the table, ascending."""
        dim = len(self.values) // 2
        Q1, Q2 = self.vectors[:dim, :rank], self.vectors[dim:, :rank]  # [D, R] each
        return Factors(
            from_embed=(self.balance * Q1).astype(np.float32),
            from_head=(self.root @ Q2).astype(np.float32),
            embed_map=(Q1.T / self.balance).astype(np.float32),
            head_map=(Q2.T @ self.inverse_root).astype(np.float32),
            exact=np.zeros(0, np.int64) if exact is None else exact,
            head_alone=None if exact is None or not len(exact) else (self.root @ _ridge_inverse(Q2)).astype(np.float32),
        )


def _ridge_inverse(Q: Array) -> Array:  # [D, R] -> [D, R]
    """The map from a row x to the r with the least |x - r Q'|, and small where several are equally good."""
    gram = Q @ Q.T if len(Q) <= Q.shape[1] else Q.T @ Q
    gram[np.diag_indices_from(gram)] += _RIDGE * np.trace(gram) / len(gram)
    solved: Array = np.linalg.solve(gram, Q) if len(Q) <= Q.shape[1] else np.linalg.solve(gram, Q.T).T
    return solved


def kept(values: Array, rank: int) -> float:
    """The fraction of the weighted energy that rank `rank` keeps, from all eigenvalues, largest first."""
    total = float(values.sum())
    return float(values[:rank].sum()) / total if total else 1.0


def spectrum_of(moments: Moments, roots: tuple[Array, Array], balance: float) -> Spectrum:
    """`balance` scales the error of the embedding relative to the error of the head in its metric."""
    root, inverse_root = roots
    D = moments.dim
    gram = np.empty((2 * D, 2 * D), _precision(D))
    gram[D:, D:] = root @ moments.head @ root
    gram[:D, :D] = balance * balance * moments.embed
    gram[:D, D:] = balance * (moments.cross @ root)
    gram[D:, :D] = gram[:D, D:].T
    values, vectors = _eigh(gram)
    return Spectrum(np.maximum(values[::-1], 0.0), vectors[:, ::-1], balance, root, inverse_root)


def equal_energy(moments: Moments, root: Array) -> float:
    """The balance at which embedding and head have the same energy."""
    energy = float(np.trace(moments.embed)), float(np.einsum("ij,jk,ki->", root, moments.head, root, optimize=True))
    return float(np.sqrt(energy[1] / energy[0])) if energy[0] > 0 and energy[1] > 0 else 1.0


def _eigh(gram: Array) -> tuple[Array, Array]:
    """Eigenvalues, smallest first, and eigenvectors. SciPy (extra [joint]) works in place: at 2D = 8192 it needs 1 GB
    where NumPy's driver needs 4."""
    try:
        from scipy.linalg import eigh
    except ImportError:
        values, vectors = np.linalg.eigh(gram)
        return values, vectors
    values, vectors = eigh(gram.T, overwrite_a=True, driver="evr", check_finite=False)
    return values, vectors


@dataclass(frozen=True)
class Factors:
    """S = E from_embed + W from_head; E ~ S embed_map, W ~ S head_map.

    The embeddings of the rows `exact` are stored beside the table, so there S = W head_alone. After distillation the
    table is no longer such a sum; it is then stored whole in `trained`."""

    from_embed: Array  # [D, R]
    from_head: Array  # [D, R]
    embed_map: Array  # [R, D]
    head_map: Array  # [R, D]
    exact: Array  # [N] ids, ascending
    head_alone: Array | None = None  # [D, R]
    trained: Array | None = None  # [V, R]

    @property
    def rank(self) -> int:
        return int(self.embed_map.shape[0])

    def rows(self, pair: Rows, start: int, stop: int) -> Array:  # -> [stop - start, R]
        """Rows of the table S."""
        if self.trained is not None:
            return self.trained[start:stop]
        e, w = pair(start, stop)
        table: Array = (
            e.astype(np.float32, copy=False) @ self.from_embed + w.astype(np.float32, copy=False) @ self.from_head
        )
        here = self.exact_between(start, stop)
        if self.head_alone is not None and len(here):
            table[here] = w[here].astype(np.float32, copy=False) @ self.head_alone
        return table

    def exact_between(self, start: int, stop: int) -> Array:
        """The ids of the exact rows in a block, counted from its start."""
        low, high = np.searchsorted(self.exact, (start, stop))
        return self.exact[low:high] - start

    def exact_embed(self, pair: Rows, vocab: int, dim: int) -> Iterator[Array]:  # -> [n, D], N rows in all
        """The embeddings that are stored beside the table, in blocks."""
        for start, stop in row_blocks(vocab, dim):
            here = self.exact_between(start, stop)
            if len(here):
                yield pair(start, stop)[0][here]


def factors_of(moments: Moments, C: Array | None, rank: int, balance: float = 1.0) -> Factors:
    """Factors from sums, metric (None: identity), rank, and balance relative to equal energy."""
    roots = (np.eye(moments.dim), np.eye(moments.dim)) if C is None else square_roots(C)
    return spectrum_of(moments, roots, balance * equal_energy(moments, roots[0])).factors(rank)
