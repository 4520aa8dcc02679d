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


@dataclass(frozen=True)
class Moments:
    """E'wE, E'wW and W'wW [D, D] each, in float64, and their row weights w [V], which sum to 1."""

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
    precision = np.float64 if dim <= 1024 else np.float32
    for start, stop in row_blocks(len(weights), dim):
        e, w = rows(start, stop)
        scaled = weights[start:stop, None].astype(precision)
        e, w = e.astype(precision, copy=False), w.astype(precision, copy=False)
        embed += e.T @ (scaled * e)
        cross += e.T @ (scaled * w)
        head += w.T @ (scaled * w)
        progress(stop - start)
    return Moments(embed, cross, head, weights)


def without_rows(moments: Moments, rows: Rows, ids: Array) -> Moments:
    """The sums without the rows `ids`, which are stored exactly and so are not fitted."""
    pairs = [rows(i, i + 1) for i in ids.tolist()]
    E, W = (np.concatenate([pair[which] for pair in pairs]) for which in (0, 1))
    gone = moments_of(lambda start, stop: (E[start:stop], W[start:stop]), moments.weights[ids], moments.dim)
    weights = moments.weights.copy()
    weights[ids] = 0.0
    return Moments(moments.embed - gone.embed, moments.cross - gone.cross, moments.head - gone.head, weights)


def square_roots(C: Array) -> tuple[Array, Array]:  # [D, D] -> C^1/2, C^-1/2
    values, vectors = np.linalg.eigh(C)
    values = np.maximum(values, values.max() * 1e-12)
    half = np.sqrt(values)
    return (vectors * half) @ vectors.T, (vectors / half) @ vectors.T


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues [2D], largest first, and eigenvectors [2D, 2D] as columns, for one balance and one metric."""

    values: Array
    vectors: Array
    balance: float
    root: Array
    inverse_root: Array

    @property
    def total(self) -> float:
        return float(self.values.sum())

    def kept(self, rank: int) -> float:
        """The fraction of the weighted energy that rank `rank` keeps."""
        return float(self.values[:rank].sum()) / self.total if self.total else 1.0

    def factors(self, rank: int) -> Factors:
        dim = len(self.values) // 2
        Q1, Q2 = self.vectors[:dim, :rank], self.vectors[dim:, :rank]  # [D, R] each
        return Factors(
            from_embed=(self.balance * Q1).astype(np.float32),
            from_head=(self.root @ Q2).astype(np.float32),
            embed_map=(Q1.T / self.balance).astype(np.float32),
            head_map=(Q2.T @ self.inverse_root).astype(np.float32),
        )


def spectrum_of(moments: Moments, roots: tuple[Array, Array], balance: float) -> Spectrum:
    """`balance` scales the error of the embedding relative to the error of the head in its metric."""
    root, inverse_root = roots
    D = moments.dim
    gram = np.empty((2 * D, 2 * D))
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

    After distillation the table is no longer such a sum; it is then stored whole in `trained`."""

    from_embed: Array  # [D, R]
    from_head: Array  # [D, R]
    embed_map: Array  # [R, D]
    head_map: Array  # [R, D]
    trained: Array | None = None  # [V, R]

    @property
    def rank(self) -> int:
        return int(self.embed_map.shape[0])

    def rows(self, pair: Rows, start: int, stop: int) -> Array:  # -> [stop - start, R]
        """Rows of the table S."""
        return self.table(*pair(start, stop)) if self.trained is None else self.trained[start:stop]

    def table(self, e: Array, w: Array) -> Array:  # [n, D], [n, D] -> [n, R]
        """Rows of S from the same rows of E and W."""
        result: Array = (
            e.astype(np.float32, copy=False) @ self.from_embed + w.astype(np.float32, copy=False) @ self.from_head
        )
        return result


def factors_of(moments: Moments, C: Array | None, rank: int, balance: float = 1.0) -> Factors:
    """Factors from sums, metric (None: identity), rank, and balance relative to equal energy."""
    roots = (np.eye(moments.dim), np.eye(moments.dim)) if C is None else square_roots(C)
    return spectrum_of(moments, roots, balance * equal_energy(moments, roots[0])).factors(rank)


def row_errors(rows: Rows, spectrum: Spectrum, rank: int, weights: Array) -> Array:  # -> [V]
    """The contribution of each row to the weighted error: its energy in the discarded directions."""
    dim = len(spectrum.values) // 2
    discarded = spectrum.vectors[:, rank:].astype(np.float32)  # [2D, 2D - R]
    from_embed = spectrum.balance * discarded[:dim]
    from_head = (spectrum.root @ discarded[dim:]).astype(np.float32)
    errors = np.zeros(len(weights))
    for start, stop in row_blocks(len(weights), dim):
        e, w = rows(start, stop)
        outside = e @ from_embed + w @ from_head  # [n, 2D - R]
        errors[start:stop] = np.einsum("nr,nr->n", outside, outside, dtype=np.float64)
    return errors * weights
