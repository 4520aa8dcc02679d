"""Medians with 95% intervals, and exponents of growth.

From six values on, the interval of a median lies between two neighbouring pairs of order statistics, interpolated to
95% as Hettmansperger and Sheather (1986) do, which assumes next to nothing about the noise. With two to five values it
is Student's interval of the mean of the logarithms, which assumes that the noise is lognormal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STUDENT = {  # 97.5% quantiles, by degrees of freedom
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179,
    15: 2.131, 20: 2.086, 30: 2.042,
}  # fmt: skip
ENOUGH = 6  # values for an interval from order statistics


@dataclass(frozen=True)
class Noise:
    """The standard deviation of the logarithms of a few values, known from more than these values."""

    deviation: float
    degrees: int  # of freedom


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


def median_interval(values: Sequence[float], noise: Noise | None = None) -> Interval:
    """The median of positive `values` and its 95% interval; `noise` serves if there are fewer than six.

    >>> found = median_interval([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    >>> [round(x, 3) for x in (found.value, found.low, found.high)]
    [1.25, 1.035, 1.463]
    """
    middle, n = median(values), len(values)
    if n == 1:
        return Interval(middle)
    if n < ENOUGH:
        logs = [math.log(v) for v in values]
        mean = sum(logs) / n
        known = noise or Noise(math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1)), n - 1)
        spread = known.deviation / math.sqrt(n) * _STUDENT[max(d for d in _STUDENT if d <= known.degrees)]
        return Interval(middle, math.exp(mean - spread), math.exp(mean + spread)).hull(middle)
    k, inner = _order(n)
    ordered = sorted(values)
    return Interval(
        middle, ordered[k] ** (1 - inner) * ordered[k + 1] ** inner,
        ordered[n - 1 - k] ** (1 - inner) * ordered[n - 2 - k] ** inner,
    )  # fmt: skip


def _order(n: int) -> tuple[int, float]:
    """The largest k with P(Binomial(n, 1/2) <= k) <= 2.5%, zero-based, and how far to go from there to k + 1."""
    k, tail = 0, 1 / 2**n
    while (longer := tail + math.comb(n, k + 1) / 2**n) <= 0.025:
        k, tail = k + 1, longer
    share = (0.025 - tail) / (longer - tail)
    return k, (n - k - 1) * share / (k + 1 + (n - 2 * k - 2) * share)


def pooled_noise(samples: Sequence[Sequence[float]]) -> Noise:
    """The noise of a single measurement, from all sides of some rounds: what their means and the rounds' leave over.

    `samples`: the measurements of each side, one for each round. It assumes that the noise of all sides is alike.
    """
    logs = [[math.log(x) for x in side] for side in samples]
    sides, rounds = len(logs), len(logs[0])
    whole = sum(map(sum, logs)) / (sides * rounds)
    of_side = [sum(side) / rounds for side in logs]
    of_round = [sum(column) / sides for column in zip(*logs, strict=True)]
    left = sum((logs[i][j] - of_side[i] - of_round[j] + whole) ** 2 for i in range(sides) for j in range(rounds))
    degrees = (sides - 1) * (rounds - 1)
    return Noise(math.sqrt(left / degrees), degrees)


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
