"""Medians with 95% intervals, and exponents of growth.

From six values on, the interval of a median is a pair of order statistics, which assumes nothing about the noise. With
two to five values it is Student's interval of the mean of the logarithms, which assumes that the noise is lognormal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}  # 97.5% quantiles, by degrees of freedom
ENOUGH = len(_STUDENT) + 2


@dataclass(frozen=True)
class Interval:
    """A median and its 95% interval; `low` and `high` are None if a single value was measured."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def width(self) -> float:
        """The width relative to the value; infinite for a single value."""
        if self.low is None or self.high is None:
            return math.inf
        return (self.high - self.low) / abs(self.value) if self.value else math.inf

    def includes(self, value: float) -> bool:
        return self.low is not None and self.high is not None and self.low <= value <= self.high

    def hull(self, *values: float) -> Interval:
        """The same median, with an interval that also includes `values`."""
        if self.low is None or self.high is None:
            return self
        return Interval(self.value, min(self.low, *values), max(self.high, *values))


def median(values: Sequence[float]) -> float:
    ordered, n = sorted(values), len(values)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def median_interval(values: Sequence[float]) -> Interval:
    """The median of positive `values` and its 95% interval.

    >>> median_interval([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    Interval(value=1.25, low=1.0, high=1.5)
    """
    middle, n = median(values), len(values)
    if n == 1:
        return Interval(middle)
    if n < ENOUGH:
        logs = [math.log(v) for v in values]
        mean = sum(logs) / n
        spread = math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1) / n) * _STUDENT[n - 1]
        return Interval(middle, math.exp(mean - spread), math.exp(mean + spread)).hull(middle)
    ordered, k = sorted(values), _order(n)
    return Interval(middle, ordered[k], ordered[n - 1 - k])


def _order(n: int) -> int:
    """The largest k with P(Binomial(n, 1/2) <= k) <= 2.5%, zero-based."""
    tail, k = 0.0, -1
    while True:
        tail += math.comb(n, k + 1) / 2**n
        if tail > 0.025:
            return k
        k += 1


@dataclass(frozen=True)
class Growth:
    """cost = constant * size ** exponent."""

    exponent: Interval
    sizes: tuple[float, ...]
    costs: tuple[float, ...]  # the median at each size


def growth(samples: Sequence[tuple[float, Sequence[float]]]) -> Growth:
    """The exponent by least squares on logarithms, once for each round, so that a drift of the machine cancels.

    `samples`: (size, costs in several rounds), the smallest size first.
    """
    sizes = [size for size, _ in samples]
    rounds = zip(*(costs for _, costs in samples), strict=True)
    factors = median_interval(
        [math.exp(_slope(sizes, costs)) for costs in rounds]
    )  # positive, as exponents need not be
    low, high = (None if end is None else math.log(end) for end in (factors.low, factors.high))
    return Growth(Interval(math.log(factors.value), low, high), tuple(sizes), tuple(median(c) for _, c in samples))


def _slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    x, y = [math.log(s) for s in sizes], [math.log(c) for c in costs]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)
