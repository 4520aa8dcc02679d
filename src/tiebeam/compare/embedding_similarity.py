"""Similarity of vocabulary matrices: how far one moved in training, and how much two of them have in common.

The rest of a model can absorb a linear map of its embedding, so similarity is measured in three ways: the cosine
through a linear map fitted on other rows, the best rotation (Procrustes), and the overlap of nearest neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def drift(before: Array, after: Array) -> dict[str, float]:  # [V, D], [V, D]
    """Distance between a matrix before and after training."""
    moved = np.linalg.norm(after - before)
    lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    cosines = (before * after).sum(axis=1)[lengths > 0] / lengths[lengths > 0]
    return {
        "relative": float(moved / max(float(np.linalg.norm(before)), 1e-30)),
        "cosine": float(cosines.mean()) if cosines.size else 0.0,
        "norm_before": float(np.linalg.norm(before)),
        "norm_after": float(np.linalg.norm(after)),
    }


def alignment(a: Array, b: Array, neighbours: int = 10, seed: int = 0) -> dict[str, float]:  # [n, D], [n, D]
    """Similarity of two matrices with matching rows by all three measures: map_cosine, procrustes, knn.

    >>> matrix = np.random.default_rng(0).standard_normal((50, 4))
    >>> {name: round(value, 2) for name, value in alignment(matrix, 2 * matrix).items()}
    {'map_cosine': 1.0, 'procrustes': 1.0, 'knn': 1.0}
    """
    return {
        "map_cosine": map_cosine(a, b, seed),
        "procrustes": procrustes(a, b),
        "knn": knn_overlap(a, b, neighbours),
    }


def map_cosine(a: Array, b: Array, seed: int = 0, folds: int = 5) -> float:
    """Mean cosine between rows of b and rows of a mapped by a linear map that was fitted on other rows."""
    a, b = _centred(a), _centred(b)
    fold = np.random.default_rng(seed).permutation(len(a)) % folds
    cosines = []
    for i in range(folds):
        rest, held = fold != i, fold == i
        ridge = 1e-3 * np.trace(a[rest].T @ a[rest]) / a.shape[1]
        gram = a[rest].T @ a[rest] + ridge * np.eye(a.shape[1])
        cosines.append(_cosines(a[held] @ np.linalg.solve(gram, a[rest].T @ b[rest]), b[held]))
    return float(np.concatenate(cosines).mean())


def procrustes(a: Array, b: Array) -> float:
    """Overlap of b with the best rotation of a: sum of singular values over the product of norms, 0 to 1."""
    a, b = _centred(a), _centred(b)
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.linalg.svd(a.T @ b, compute_uv=False).sum()) / size if size else 0.0


def knn_overlap(a: Array, b: Array, neighbours: int = 10) -> float:
    """Mean fraction of each row's nearest rows (by cosine) that are the same in both matrices."""
    k = min(neighbours, len(a) - 1)
    if k < 1:
        return 1.0
    near = [_nearest(_centred(matrix), k) for matrix in (a, b)]
    return float(np.mean([len(np.intersect1d(x, y)) / k for x, y in zip(*near, strict=True)]))


def expected_knn_overlap(rows: int, neighbours: int = 10) -> float:
    """Expected knn_overlap of unrelated matrices."""
    return min(1.0, neighbours / max(1, rows - 1))


def spectrum(matrix: Array) -> Array:  # [V, D] -> [D]
    """Squared singular values as fractions of their sum, descending."""
    values = np.linalg.svd(matrix, compute_uv=False) ** 2
    shares: Array = values / max(float(values.sum()), 1e-300)
    return shares


def _centred(x: Array) -> Array:
    """Subtract the mean row. It is large in trained embeddings, and would make all of them look similar."""
    centred: Array = (x - x.mean(axis=0)).astype(np.float64)
    return centred


def _cosines(a: Array, b: Array) -> Array:
    size = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    found: Array = (a * b).sum(axis=1) / np.maximum(size, 1e-30)
    return found


def _nearest(matrix: Array, k: int, block: int = 1024) -> Array:  # [n, D] -> [n, k]
    unit = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-30)
    found = []
    for start in range(0, len(unit), block):
        scores = unit[start : start + block] @ unit.T
        scores[np.arange(len(scores)), start + np.arange(len(scores))] = -np.inf
        found.append(np.argpartition(-scores, k - 1, axis=1)[:, :k])
    return np.concatenate(found)
