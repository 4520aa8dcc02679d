"""Does a published claim hold at this size? Each variant against the one that it modifies, at equal steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tiebeam.compare.equal_steps_time_size import Seeds, equal_steps
from tiebeam.compare.held_out_curves import HeldOutCurve
from tiebeam.compare.variants import VARIANTS, Expectation

MARGIN = 0.01
"""Bits per byte: a loss that is higher by less than this counts as no higher."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a source says about a variant, and the measured difference to the variant that it modifies."""

    variant: str
    against: str
    claim: str
    source: str
    difference: float
    """Held-out bits per byte of the variant minus those of `against`: below 0 the variant is better."""
    ci_low: float
    ci_high: float
    params: int
    """Parameters that it adds."""
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_claims(curves: Sequence[HeldOutCurve]) -> list[Claim]:
    """The claims of the variants that were trained together with what they modify, at the largest width."""
    vocab, width = curves[0].run.vocab, max(curve.run.width for curve in curves)
    trained: dict[str, dict[int, HeldOutCurve]] = {}
    for curve in curves:
        if (curve.run.vocab, curve.run.width) == (vocab, width):
            trained.setdefault(curve.run.variant, {})[curve.run.seed] = curve
    return [
        _check(name, trained[against], seeds)
        for name, seeds in trained.items()
        if name != "tied" and (against := VARIANTS[name].against) in trained
    ]


def _check(name: str, first: Seeds, second: Seeds) -> Claim:
    variant, found = VARIANTS[name], equal_steps((first, second), 0.0)
    added = next(iter(second.values())).run.config.params - next(iter(first.values())).run.config.params
    return Claim(
        name, variant.against, variant.claim, variant.source, found.difference, found.ci_low, found.ci_high, added,
        verdict(variant.expects, found.ci_low, found.ci_high),
    )  # fmt: skip


def verdict(expects: Expectation, low: float, high: float) -> str:
    """`holds`, `does not hold`, or `cannot tell at this size`, by the 95% confidence interval of the difference.

    >>> verdict("lower", -0.03, -0.01)
    'holds'
    """
    bound = 0.0 if expects == "lower" else MARGIN
    if high < bound:
        return "holds"
    return "does not hold" if low > bound else "cannot tell at this size"
