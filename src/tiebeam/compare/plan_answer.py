"""The answer for a planned model: the measured trend of the gap against the head share, beside what known models do.

What was measured is the difference between untied and tied at the widths of the ladder. A planned model differs in
two ways: its head share may lie outside the measured range, and it is usually much larger. Both are said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tiebeam.budget import Budget, human, percent
from tiebeam.catalog import verdict
from tiebeam.compare.document import Cell, Gap
from tiebeam.errors import BadRequest


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """`predicted` is the difference in bits per byte at equal steps on a line through the measured gaps."""

    title: str
    vocab: int
    dim: int
    head_share: float
    untied_params: int
    measured_shares: tuple[float, float]
    measured_params: tuple[int, int]
    predicted: float | None
    inside: bool
    """Whether the head share lies in the measured range."""
    sentences: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def answer_for(title: str, budget: Budget, gaps: Sequence[Gap], cells: Sequence[Cell]) -> PlanAnswer:
    """Place a planned model on the trend of one variant's gaps to the baseline."""
    share, total = budget.head_share, budget.untied_total
    if share is None or total is None:
        raise BadRequest(
            f"the head share of {title} needs its number of non-embedding parameters; give for_model=VxDxN with it"
        )
    shares, params = [gap.head_share for gap in gaps], [cell.params for cell in cells]
    low, high = min(shares), max(shares)
    inside = low <= share <= high
    predicted = _line(gaps, share)
    pair = f"{gaps[0].steps.second} minus {gaps[0].steps.first}"
    steps = ", ".join(
        f"{a.difference:+.4f} ({a.ci_low:+.4f} to {a.ci_high:+.4f}) at {percent(share_of_head)}"
        for share_of_head, a in sorted(((g.head_share, g.steps) for g in gaps), key=lambda pair: pair[0])
    )
    measured = f"Measured: {pair} in bits per byte at equal steps, by head share: {steps}."
    place = f"{title}: a separate head would be {percent(share)} of {human(total)} parameters"
    if predicted is None:
        trend = f"{place}; one width gives no trend, train several."
    elif inside:
        trend = f"{place}, inside the measured range; the line through the measurements gives {predicted:+.4f}."
    else:
        trend = (
            f"{place}, outside the measured {percent(low)} to {percent(high)}: {predicted:+.4f} on the line through "
            "the measurements is an extrapolation."
        )
    size = (
        f"In size it is an extrapolation: the measured models have {human(min(params))} to {human(max(params))} "
        "parameters and were trained for minutes."
        if total > 2 * max(params)
        else ""
    )
    known = f"Known models: {verdict(share).sentence}"
    return PlanAnswer(
        title, budget.vocab, budget.dim, share, total, (low, high), (min(params), max(params)), predicted, inside,
        tuple(text for text in (measured, trend, size, known) if text),
    )  # fmt: skip


def _line(gaps: Sequence[Gap], share: float) -> float | None:
    """Least squares of the gap on the head share, each point weighted by its interval; None for a single share."""
    x = np.array([gap.head_share for gap in gaps])
    if np.ptp(x) == 0:
        return None
    widths = np.array([max(1e-6, gap.steps.ci_high - gap.steps.ci_low) for gap in gaps])
    slope, start = np.polyfit(x, [gap.steps.difference for gap in gaps], 1, w=1 / widths)
    return float(start + slope * share)
