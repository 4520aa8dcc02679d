"""Sums over the eigenvalues of a large symmetric operator without solving for all of them, with a stated error.

A randomised range finder takes the largest eigenvalues out (Halko, Martinsson and Tropp, 2011). What remains has many
eigenvalues and none that stands out, so a few random probes average over it: the Lanczos quadrature of each probe is a
sample of its spectral density (Ubaru, Chen and Saad, 2017). The spread of the probes gives the standard error.

The operator is x -> step(gram(x)) on columns x [n, m]. It is self-adjoint in the inner product <x, y> = x' gram(y).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
PROBES = 32
_STEPS = 96
_LEADING = 192  # eigenvalues that the range finder takes out
_SPARE = 64  # further columns, which make the last of them accurate
_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Density:
    """The leading eigenvalues, and the Lanczos nodes and weights of every probe for the others."""

    leading: Array  # [k]
    nodes: Array  # [probes, steps]
    weights: Array  # [probes, steps]; of one probe they sum to the squared length of what is left of it


def spectral_density(
    gram: Callable[[Array], Array], step: Callable[[Array], Array], start: Array, seed: int = 0
) -> Density:  # start: [n, probes]
    """The density seen from `start`, whose columns are random. Deterministic for a seed."""
    leading, basis, images = _leading_eigenvalues(gram, step, len(start), seed)

    def deflate(x: Array) -> Array:
        return x - basis @ (images.T @ x)

    nodes, weights = _lanczos(gram, lambda p: deflate(step(p)), deflate(start))
    return Density(leading, nodes, weights)


def _leading_eigenvalues(
    gram: Callable[[Array], Array], step: Callable[[Array], Array], n: int, seed: int
) -> tuple[Array, Array, Array]:
    """The eigenvalues of largest magnitude [k], their vectors C [n, k] with C' gram(C) = I, and gram(C)."""
    count = min(_LEADING, n // 4)
    x: Array = np.random.default_rng(seed).standard_normal((n, min(n, count + _SPARE)))
    for _ in range(_ROUNDS):
        x, images = _orthonormal(x, gram(x))
        x = step(images)
    x, images = _orthonormal(x, gram(x))
    values, vectors = np.linalg.eigh(images.T @ step(images))
    kept = np.argsort(-np.abs(values))[:count]
    return values[kept], x @ vectors[:, kept], images @ vectors[:, kept]


def _orthonormal(x: Array, images: Array) -> tuple[Array, Array]:
    """A basis of the columns of `x` with the inner product's Gram matrix I, and its images; null directions go."""
    values, vectors = np.linalg.eigh(x.T @ images)
    kept = values > values.max(initial=0.0) * 1e-14
    turn = vectors[:, kept] / np.sqrt(values[kept])
    return x @ turn, images @ turn


def _lanczos(
    gram: Callable[[Array], Array], step: Callable[[Array], Array], start: Array
) -> tuple[Array, Array]:  # [n, m] -> [m, steps], [m, steps]
    """Nodes and weights of the quadrature of every column. Lost orthogonality splits a node; its weight stays right."""
    steps = min(_STEPS, len(start))
    alpha, beta = np.zeros((steps, start.shape[1])), np.zeros((steps, start.shape[1]))
    images = gram(start)
    length = np.sqrt(np.maximum((start * images).sum(axis=0), 0))
    x, images = _divided(start, images, length)
    before = np.zeros_like(x)
    for i in range(steps):
        y = step(images)
        alpha[i] = (y * images).sum(axis=0)
        y -= x * alpha[i] + before * (beta[i - 1] if i else 0.0)
        images = gram(y)
        norm = np.sqrt(np.maximum((y * images).sum(axis=0), 0))
        norm[norm <= 1e-12 * np.abs(alpha[: i + 1]).max(axis=0)] = 0.0  # the probe's eigenvectors are exhausted
        beta[i], before = norm, x
        x, images = _divided(y, images, norm)
    tridiagonal = np.zeros((start.shape[1], steps, steps))
    places = np.arange(steps)
    tridiagonal[:, places, places] = alpha.T
    tridiagonal[:, places[1:], places[:-1]] = beta[:-1].T
    nodes, vectors = np.linalg.eigh(tridiagonal)  # reads the lower triangle
    return nodes, vectors[:, 0, :] ** 2 * length[:, None] ** 2


def _divided(x: Array, images: Array, by: Array) -> tuple[Array, Array]:
    inverse = np.divide(1.0, by, out=np.zeros_like(by), where=by > 0)
    return x * inverse, images * inverse


def ratio(parts: Array, wholes: Array) -> tuple[float, float]:  # [m], [m]
    """sum(parts) / sum(wholes) over probes, and its standard error by the jackknife."""
    part, whole, count = float(parts.sum()), float(wholes.sum()), len(parts)
    if not whole:
        return 0.0, 0.0
    without = (part - parts) / np.maximum(whole - wholes, 1e-300)
    return part / whole, float(np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum()))
