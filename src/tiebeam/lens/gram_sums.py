"""Sums over the rows of both tables: the Gram matrices F'F, F'W, E'E, E'W and W'W, row norms, and random sketches.

Each Gram matrix takes 2 V D^2 operations, half of that where it is symmetric. In float32 a block of rows takes half
the time of float64. The blocks are added in float64, so the rounding of one block is all that is lost: about 1e-8 of
the product of two column norms. That is enough unless a column is nearly a combination of others, where the small
eigenvalues are differences of large numbers; `full_rank` is then False, and the lens sums again in float64.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.lens.gram_factors import least_pivot
from tiebeam.lens.spectral_density import PROBES

Array = NDArray[np.floating[Any]]
_PRODUCTS = ("FF", "FW", "EE", "EW", "WW")
_LEAST_PIVOT = 1e-2  # share of a column's norm that the columns before it must leave


class GramSums:
    """Add blocks of rows, then `finish`. `dtype` is that of the products; the sums are float64."""

    def __init__(self, dim: int, dtype: type[np.floating[Any]], *, sketched: bool) -> None:
        self._dim, self._dtype = dim, dtype
        self._sums: dict[str, Array] = {name: np.zeros((dim, dim)) for name in ("FF", "FW", "WW")}
        self._product = np.empty((dim, dim), dtype)
        self._probes = np.random.default_rng(0) if sketched else None
        self.sketch = np.zeros((2 * dim, PROBES))  # [F | W]^T g for random g
        self.one_table = True
        self._norms: tuple[list[Array], list[Array]] = ([], [])
        self._diagonal: list[Array] = []

    def add(self, E: Array, F: Array, W: Array) -> None:  # [n, D] each
        """One block of rows: the embedding as stored, as the head sees it, and the head."""
        E, F, W = (np.asarray(table, self._dtype) for table in (E, F, W))
        if self.one_table and not np.array_equal(E, W):  # until now E'E and E'W were W'W
            self.one_table = False
            self._sums["EE"], self._sums["EW"] = self._sums["WW"].copy(), self._sums["WW"].copy()
        for name, total in self._sums.items():
            left, right = ({"E": E, "F": F, "W": W}[letter] for letter in name)
            total += np.matmul(left.T, right, out=self._product)
        if self._probes is not None:
            probes = self._probes.standard_normal((len(E), PROBES)).astype(self._dtype)
            self.sketch[: self._dim] += F.T @ probes
            self.sketch[self._dim :] += W.T @ probes
        for kept, left, right in ((self._norms[0], E, E), (self._norms[1], W, W), (self._diagonal, F, W)):
            kept.append(np.einsum("ij,ij->i", left, right).astype(np.float64))

    def finish(self) -> None:
        """No more blocks: free what only adding needs."""
        self._product = np.empty((0, 0), self._dtype)

    @property
    def products(self) -> dict[str, Array]:  # [D, D] each
        """Of tied tables E'E and E'W are W'W itself, not copies."""
        return {name: self._sums.get(name, self._sums["WW"]) for name in _PRODUCTS}

    @cached_property
    def full_rank(self) -> bool:
        """Whether F, E and W have full rank beyond doubt: no column is nearly a combination of those before it."""
        names = ("FF", "WW") if self.one_table else ("FF", "EE", "WW")
        return all(least_pivot(self._sums[name]) > _LEAST_PIVOT for name in names)

    @property
    def norms(self) -> tuple[Array, Array]:  # [V], [V]
        """Row norms of E and W."""
        return np.sqrt(np.concatenate(self._norms[0])), np.sqrt(np.concatenate(self._norms[1]))

    @property
    def diagonal(self) -> Array:  # [V]
        return np.concatenate(self._diagonal)
