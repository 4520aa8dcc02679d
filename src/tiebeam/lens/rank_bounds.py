"""Lower bounds on the error of approximating a bigram table at rank d: any matrix, symmetric, positive semidefinite.

The target is the smoothed pointwise mutual information (PMI) of the frequent tokens. Eckart-Young gives the best
rank-d matrix. The best symmetric one loses the antisymmetric part and keeps the d eigenvalues of the symmetric part
that are largest in magnitude; the best positive semidefinite one can keep only positive eigenvalues.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.lens.bigram_counts import Bigrams


@dataclass(frozen=True, slots=True)
class Bounds:
    """Shares of the table's energy (squared Frobenius norm). `any`, `symmetric` and `semidefinite` are the residuals at
    rank `dim`."""

    dim: int
    antisymmetric: float
    negative: float
    """Share of the symmetric part's energy in negative eigenvalues; E.E^T cannot represent it at any width."""
    any: float
    symmetric: float
    semidefinite: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def pmi(counts: Bigrams, smoothing: float = 0.5) -> NDArray[np.float64]:  # -> [V, V]
    """log p(a, b) / p(a) p(b), smoothed towards independence so that unseen pairs stay finite."""
    table = counts.dense().astype(np.float64)
    total = table.sum()
    first, second = table.sum(axis=1, keepdims=True), table.sum(axis=0, keepdims=True)
    expected = first * second / total
    seen = (first > 0) & (second > 0)
    return np.where(
        seen,
        np.log(
            (table + smoothing * np.sqrt(np.maximum(expected, 1e-12)))
            / (np.maximum(expected, 1e-12) + smoothing * np.sqrt(np.maximum(expected, 1e-12)))
        ),
        0.0,
    )


def bounds(matrix: NDArray[np.float64], dim: int) -> Bounds:  # [V, V]
    """Energy shares and residuals of a square matrix at rank `dim`."""
    energy = max(float((matrix**2).sum()), 1e-300)
    half = (matrix + matrix.T) / 2
    eigenvalues = np.linalg.eigvalsh(half)
    squares = eigenvalues**2
    symmetric_energy = max(float(squares.sum()), 1e-300)
    singular = np.linalg.svd(matrix, compute_uv=False) ** 2
    largest = np.sort(squares)[::-1]
    positive = np.sort(squares[eigenvalues > 0])[::-1]
    antisymmetric = max(0.0, energy - symmetric_energy)
    return Bounds(
        dim=dim,
        antisymmetric=antisymmetric / energy,
        negative=float(squares[eigenvalues < 0].sum()) / symmetric_energy,
        any=float(singular[dim:].sum()) / energy,
        symmetric=(antisymmetric + float(largest[dim:].sum())) / energy,
        semidefinite=(antisymmetric + symmetric_energy - float(positive[:dim].sum())) / energy,
    )
