"""The lens of a wide model: the two results that need all 2D eigenvalues, estimated from D x D products.

The leading eigenvalues are computed, the others are sampled (spectral_density.py). Traces that are known exactly fix
the sums, so only the division of the remainder is estimated, and its error is stated: three standard errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.lens.matrix_energy import Energy, rank_of
from tiebeam.lens.spectral_density import PROBES, Density, ratio, spectral_density

Array = NDArray[np.floating[Any]]
ERRORS = 3  # standard errors that are stated as the error
_JOINT_SEED = 1


@dataclass(frozen=True, slots=True)
class JointEstimate:
    """The joint spectrum [2D], descending, sums to 1; `error` is the largest of its partial sums."""

    spectrum: Array
    error: float


def estimate_negative(
    products: Mapping[str, Array], sketch: Array, norm: float, singular: Array
) -> tuple[Energy, float]:  # sketch: [2D, probes], [F | W]^T g for random g
    """The energy of the path, whose squared norm is given, and three standard errors of its negative share.

    The symmetric part S = (F W^T + W F^T) / 2 maps [F | W] c to [F | W] K G c, and <[F | W] c, [F | W] d> = c^T G d.
    A probe starts at S g, so that every eigenvalue counts with its square.
    """
    FF, FW, WW = products["FF"], products["FW"], products["WW"]
    D = len(FF)

    def gram(c: Array) -> Array:
        return np.concatenate([FF @ c[:D] + FW @ c[D:], FW.T @ c[:D] + WW @ c[D:]])

    def swap(u: Array) -> Array:
        return np.concatenate([u[D:], u[:D]]) / 2

    turned = float((FW * FW.T).sum())  # <M, M^T> = tr((W'F)^2)
    symmetric = (norm + turned) / 2  # the squared norm of S
    found = spectral_density(gram, swap, swap(sketch))
    squares = found.leading**2
    rest = max(0.0, symmetric - float(squares.sum()))
    below = (found.weights * (found.nodes < 0)).sum(axis=1)
    share, error = ratio(below, found.weights.sum(axis=1))
    negative = float(squares[found.leading < 0].sum()) + rest * share
    energy = Energy(
        norm=norm**0.5,
        symmetric=symmetric / norm if norm else 1.0,
        antisymmetric=max(0.0, 1 - symmetric / norm) if norm else 0.0,
        negative=min(1.0, negative / symmetric) if symmetric else 0.0,
        rank=rank_of(singular),
    )
    return energy, ERRORS * rest * error / symmetric if symmetric else 0.0


def estimate_joint(products: Mapping[str, Array]) -> JointEstimate:
    """The spectrum of the Gram matrix of [E / |E| | W / |W|] / 2, as one from the largest to the smallest."""
    EE, EW, WW = products["EE"], products["EW"], products["WW"]
    D = len(EE)
    scale = np.repeat([[float(np.trace(EE))], [float(np.trace(WW))]], D, axis=0) ** -0.5  # [2D, 1]

    def apply(c: Array) -> Array:
        c = scale * c
        applied: Array = scale * np.concatenate([EE @ c[:D] + EW @ c[D:], EW.T @ c[:D] + WW @ c[D:]]) / 2
        return applied

    start = np.random.default_rng(_JOINT_SEED).standard_normal((2 * D, PROBES))
    found = spectral_density(lambda c: c, apply, start)
    whole = _decreasing(found, np.arange(PROBES), 2 * D)
    sums = np.cumsum(whole)
    # jackknife: the spectrum without each probe in turn
    without = [np.cumsum(_decreasing(found, np.delete(np.arange(PROBES), i), 2 * D)) for i in range(PROBES)]
    spread = sum((one - sums) ** 2 for one in without)
    return JointEstimate(whole, ERRORS * float(np.sqrt((PROBES - 1) / PROBES * np.max(spread))))


def _decreasing(found: Density, probes: NDArray[np.int64], count: int) -> Array:
    """`count` eigenvalues: the leading ones, then as many as are left, each the mean of its part of the density."""
    nodes, weights = found.nodes[probes].ravel(), found.weights[probes].ravel()
    order = np.argsort(-nodes)
    nodes, weights = np.maximum(nodes[order], 0), weights[order] / weights.sum()
    left = count - len(found.leading)
    mass = np.concatenate([[0.0], np.cumsum(weights)]) * left  # how many eigenvalues are above
    energy = np.concatenate([[0.0], np.cumsum(weights * nodes)]) * left
    rest = np.diff(np.interp(np.arange(left + 1), mass, energy))
    rest *= max(0.0, 1 - float(found.leading.sum())) / max(float(rest.sum()), 1e-300)  # the trace is 1
    return np.sort(np.concatenate([np.maximum(found.leading, 0), rest]))[::-1]
