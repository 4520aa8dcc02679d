"""Differences of held-out loss with 95% confidence intervals, paired over documents and seeds.

Every variant is measured on the same documents, and variants of one seed start from the same weights and see the same
batches. So a difference is taken document by document and seed by seed, and its variance has two parts: documents (of
the seed-averaged differences, as of a ratio estimator, because documents differ in length) and seeds (of the
differences per seed). A matched point between two checks is a weighted sum of measured losses, so it has the same
statistics. A third part, the clock, is for differences at equal time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np
from numpy.typing import NDArray

Losses = NDArray[np.float64]

SEED_ERROR, SEED_FREEDOM = 0.02, 19
"""Bits per byte: standard deviation of the difference between two runs of one variant with different seeds.

Used where there is a single seed. Twenty pairs of bench/aa.py have 0.012, without the part of the documents; twenty
others vary more, and 19 of their intervals include 0 with this allowance. Runs with equal seeds differ less."""
_T95 = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179,
    15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, inf: 1.960,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Estimate:
    """A difference in bits per byte with its 95% confidence interval and the standard errors behind it."""

    difference: float
    low: float
    high: float
    errors: dict[str, float]

    @property
    def includes_zero(self) -> bool:
        return self.low <= 0 <= self.high


def estimate(nats: Losses, text_bytes: Losses, clock_error: float = 0.0) -> Estimate:  # [S, G], [G]
    """Estimate a difference from its summed nats per seed and document, and the bytes of the documents.

    >>> found = estimate(np.log(2) * np.array([[30.0, 20.0, 31.0]]), np.array([100.0, 100.0, 100.0]))
    >>> round(found.difference, 2), found.includes_zero
    (0.27, False)
    """
    per_seed = nats.sum(axis=1) / text_bytes.sum() / log(2)  # [S]
    documents, freedom = document_error(nats.mean(axis=0), text_bytes), max(1, len(text_bytes) - 1)
    if len(per_seed) > 1:
        seeds, seed_freedom = float(per_seed.std(ddof=1)) / sqrt(len(per_seed)), len(per_seed) - 1
    else:
        seeds, seed_freedom = SEED_ERROR, SEED_FREEDOM
    parts = [(documents, freedom), (seeds, seed_freedom), (clock_error, SEED_FREEDOM)]
    difference, half = float(per_seed.mean()), half_width(parts)
    errors = {"documents": documents, "seeds": seeds, "clock": clock_error}
    return Estimate(difference, difference - half, difference + half, errors)


def document_error(nats: Losses, text_bytes: Losses) -> float:  # [G], [G]
    """Standard error over documents of sum(nats) / sum(bytes), in bits per byte."""
    kept = text_bytes > 0
    nats, text_bytes = nats[kept], text_bytes[kept]
    count = len(nats)
    if count < 2:
        return SEED_ERROR
    residual = nats - nats.sum() / text_bytes.sum() * text_bytes
    return float(np.sqrt(count / (count - 1) * (residual**2).sum()) / text_bytes.sum() / log(2))


def half_width(parts: Sequence[tuple[float, float]]) -> float:
    """Half of the 95% interval of a sum of independent errors, each with its degrees of freedom (Satterthwaite)."""
    variance = sum(error**2 for error, _ in parts)
    if variance == 0:
        return 0.0
    freedom = variance**2 / sum(error**4 / free for error, free in parts if error > 0)
    return t95(freedom) * sqrt(variance)


def t95(freedom: float) -> float:
    """Two-sided 95% quantile of Student's t, interpolated in 1/freedom between table entries.

    >>> t95(1), round(t95(11), 2), t95(float("inf"))
    (12.706, 2.2, 1.96)
    """
    known = list(_T95)
    at = [1 / f for f in known]
    return float(np.interp(1 / max(1.0, freedom), at[::-1], [_T95[f] for f in known][::-1]))


def seeds_needed(found: Estimate, seeds: int) -> int | None:
    """The number of seeds with which a difference of this size would be clear; None above 100 seeds.

    The documents stay the same, so if they alone leave the interval wider than the difference, no number is enough.
    """
    spread = found.errors["seeds"] * sqrt(seeds)
    fixed = [(found.errors["documents"], SEED_FREEDOM), (found.errors["clock"], SEED_FREEDOM)]
    for more in range(max(2, seeds + 1), 101):
        if half_width([*fixed, (spread / sqrt(more), more - 1)]) < abs(found.difference):
            return more
    return None


def interpolation_weights(points: Sequence[float], at: float) -> NDArray[np.float64]:  # [n] -> [n]
    """Weights of the values at increasing `points` that give the value at `at`: a parabola through the nearest three.

    >>> interpolation_weights([0.0, 1.0, 2.0], 2.0).tolist()
    [0.0, 0.0, 1.0]
    """
    x = np.asarray(points, np.float64)
    near = np.sort(np.argsort(np.abs(x - at), kind="stable")[:3])
    weights = np.zeros(len(x))
    for i in near:
        others = x[near[near != i]]
        weights[i] = np.prod((at - others) / (x[i] - others))
    return weights


def median_ratio(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:  # [n], [n]
    """Median of second / first over paired slices of time, and the standard error of its logarithm.

    A stall that hits one slice moves a sum of times, and not the median.
    """
    logs = np.log(np.asarray(second, np.float64)) - np.log(np.asarray(first, np.float64))
    middle = float(np.median(logs))
    deviation = 1.4826 * float(np.median(np.abs(logs - middle)))
    return float(np.exp(middle)), 1.2533 * deviation / sqrt(len(logs))
