"""Symmetry, definiteness and rank of a square matrix, measured in energy (squared Frobenius norm)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Energy:
    """Shares of a matrix's energy. `symmetric` and `antisymmetric` add up to 1."""

    norm: float
    symmetric: float
    antisymmetric: float
    negative: float
    """Share of the symmetric part's energy in negative eigenvalues: 0 for E.E^T, whatever E is."""
    rank: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def energy_of(matrix: Array) -> Energy:  # [n, n]
    """The energy of a small matrix, computed directly. `Lens.energy` gives the same for the whole path."""
    half = (matrix + matrix.T) / 2
    return from_spectra(float((matrix**2).sum()), np.linalg.eigvalsh(half), np.linalg.svd(matrix, compute_uv=False))


def from_spectra(energy: float, eigenvalues: Array, singular: Array) -> Energy:
    """`eigenvalues` of the symmetric part and `singular` values of the matrix whose energy is given."""
    squares = eigenvalues**2
    symmetric = float(squares.sum())
    return Energy(
        norm=energy**0.5,
        symmetric=symmetric / energy if energy else 1.0,
        antisymmetric=max(0.0, 1 - symmetric / energy) if energy else 0.0,
        negative=float(squares[eigenvalues < 0].sum()) / symmetric if symmetric else 0.0,
        rank=rank_of(singular),
    )


def rank_of(singular: Array) -> int:
    """How many singular values exceed 1e-7 of the largest."""
    return int((singular > singular.max(initial=0.0) * 1e-7).sum())
