"""Vocabulary tables side by side: how far each moved, and which end of an untied model a tied table resembles.

A table is known only up to what the rest of the model makes of it, so resemblance is measured three ways: a linear
map fitted on some rows and judged by cosine on others; the best rotation; and whether rows have the same neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def drift(before: Array, after: Array) -> dict[str, float]:  # [V, D], [V, D]
    """How far a table went from where it began."""
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
    """Of rows that belong together: map_cosine (held out), procrustes (cosine), knn (share of neighbours in common)."""
    return {
        "map_cosine": map_cosine(a, b, seed),
        "procrustes": procrustes(a, b),
        "knn": knn_overlap(a, b, neighbours),
    }


def map_cosine(a: Array, b: Array, seed: int = 0, folds: int = 5) -> float:
    """Mean cosine between b's rows and a's rows through a linear map fitted on other rows."""
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
    """How much of b the best rotation of a is: the sum of singular values over the product of norms, in 0 .. 1."""
    a, b = _centred(a), _centred(b)
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.linalg.svd(a.T @ b, compute_uv=False).sum()) / size if size else 0.0


def knn_overlap(a: Array, b: Array, neighbours: int = 10) -> float:
    """The mean share of each row's nearest rows (by cosine) that are the same in both tables."""
    k = min(neighbours, len(a) - 1)
    if k < 1:
        return 1.0
    near = [_nearest(_centred(table), k) for table in (a, b)]
    return float(np.mean([len(np.intersect1d(x, y)) / k for x, y in zip(*near, strict=True)]))


def chance_overlap(rows: int, neighbours: int = 10) -> float:
    """What knn_overlap would be for unrelated tables."""
    return min(1.0, neighbours / max(1, rows - 1))


def spectrum(table: Array) -> Array:  # [V, D] -> [D], squares as shares of their sum, descending
    values = np.linalg.svd(table, compute_uv=False) ** 2
    shares: Array = values / max(float(values.sum()), 1e-300)
    return shares


def _centred(x: Array) -> Array:
    """All rows share a direction in a trained table; without it gone everything resembles everything."""
    centred: Array = (x - x.mean(axis=0)).astype(np.float64)
    return centred


def _cosines(a: Array, b: Array) -> Array:
    size = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    found: Array = (a * b).sum(axis=1) / np.maximum(size, 1e-30)
    return found


def _nearest(table: Array, k: int, block: int = 1024) -> Array:  # [n, D] -> [n, k]
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-30)
    found = []
    for start in range(0, len(unit), block):
        scores = unit[start : start + block] @ unit.T
        scores[np.arange(len(scores)), start + np.arange(len(scores))] = -np.inf
        found.append(np.argpartition(-scores, k - 1, axis=1)[:, :k])
    return np.concatenate(found)
