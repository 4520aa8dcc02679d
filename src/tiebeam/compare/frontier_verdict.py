"""Does a published claim hold at this size? By the interval of a measured difference."""

from __future__ import annotations

from tiebeam.compare.variants import Expectation

MARGIN = 0.01
"""Bits per byte: a loss that is higher by less than this counts as no higher."""


def verdict(expects: Expectation, low: float, high: float) -> str:
    """`holds`, `does not hold`, or `cannot tell at this size`.

    `low` and `high` are the 95% confidence interval of the variant's held-out bits per byte minus those of the variant
    that it modifies: below 0 the variant is better.

    >>> verdict("lower", -0.03, -0.01)
    'holds'
    """
    bound = 0.0 if expects == "lower" else MARGIN
    if high < bound:
        return "holds"
    return "does not hold" if low > bound else "cannot tell at this size"
