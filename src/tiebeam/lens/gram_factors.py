"""Factors of Gram matrices, and singular values from them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
_SMALL = 128  # triangles up to this size are inverted by LAPACK
_BLOCK = 512  # columns of a Cholesky factor that are computed together


def factor(G: Array) -> Array:  # [n, n] -> R with G = R R^T
    """Cholesky where G has full rank, at a twentieth of the cost; else the symmetric square root."""
    try:
        return np.linalg.cholesky(G)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(G)
        root: Array = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
        return root


def cholesky_(G: Array) -> Array:  # [n, n], replaced by its lower factor
    """The Cholesky factor in the memory of G; np.linalg.cholesky takes five more matrices of that size.

    Raises LinAlgError like it.

    >>> cholesky_(np.array([[4.0, 2.0], [2.0, 10.0]]))
    array([[2., 0.],
           [1., 3.]])
    """
    for top in range(0, len(G), _BLOCK):
        end = top + _BLOCK
        root = np.linalg.cholesky(G[top:end, top:end])
        G[top:end, top:end], G[top:end, end:] = root, 0
        below = G[end:, top:end]
        below[:] = below @ invert_lower(root).T
        for start in range(0, len(below), _BLOCK):
            G[end + start :, end + start : end + start + _BLOCK] -= below[start:] @ below[start : start + _BLOCK].T
    return G


def multiply_(X: Array, M: Array) -> Array:  # [m, n], [n, n] -> [m, n]
    """X @ M in the memory of X.

    >>> multiply_(np.array([[1.0, 2.0]]), np.array([[0.0, 1.0], [1.0, 0.0]]))
    array([[2., 1.]])
    """
    for start in range(0, len(X), _BLOCK):
        rows = X[start : start + _BLOCK]
        rows[:] = rows @ M
    return X


def roots(squares: Array) -> Array:  # ascending -> descending
    """Singular values from the eigenvalues that are their squares, some of them rounded to below 0."""
    values: Array = np.sqrt(np.maximum(squares[::-1], 0))
    return values


def whitening(G: Array) -> tuple[Array, int]:
    """R^-1 with G = R R^T on the range of G, and the rank of G."""
    with suppress(np.linalg.LinAlgError):
        root = cholesky_(G.copy())
        pivots = np.diag(root)
        if pivots.min() > pivots.max() * 1e-5:  # clearly of full rank; near the limit the eigenvalues decide
            return invert_lower(root), len(G)
    values, vectors = np.linalg.eigh(G)
    kept = values > values.max(initial=0.0) * 1e-12
    inverse: Array = (vectors[:, kept] / np.sqrt(values[kept])) @ vectors[:, kept].T
    return inverse, int(kept.sum())


def invert_lower(R: Array) -> Array:  # [n, n], lower triangular; replaced by its inverse
    """The inverse by halves, in matrix products: NumPy's own solver does not use that R is triangular.

    >>> invert_lower(np.array([[2.0, 0.0], [1.0, 4.0]]))
    array([[ 0.5  ,  0.   ],
           [-0.125,  0.25 ]])
    """
    n = len(R)
    if n <= _SMALL:
        R[:] = np.tril(np.linalg.inv(R))
        return R
    half = n // 2
    one, two = invert_lower(R[:half, :half]), invert_lower(R[half:, half:])
    R[half:, :half] = -(two @ (R[half:, :half] @ one))
    return R


def least_pivot(G: Array) -> float:  # [n, n]
    """The smallest pivot of the Cholesky factor if all columns had norm 1; 0 without full rank. Good to 1e-3."""
    with np.errstate(all="ignore"):
        scale = 1 / np.sqrt(np.diag(G))
        scaled = np.multiply(G, scale, out=np.empty(G.shape, np.float32), casting="same_kind")
        scaled *= scale[:, None]
    try:
        least = float(np.diag(cholesky_(scaled)).min(initial=1.0))
    except np.linalg.LinAlgError:
        return 0.0
    return least if np.isfinite(least) else 0.0
