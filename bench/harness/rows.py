"""A row: what was measured, against what, the goal, what limits it, and the verdict.

| verdict | when |
|---|---|
| met | the goal is reached (of a wide interval: by all of it) |
| at goal | the interval is narrower than 5% and includes the goal: neither met nor missed can be told |
| limited | the goal is missed, and so does the limit that was measured in the same run; the row is within 5% of it |
| at limit | met or limited, as the interval includes the goal; but all of the ratio to the limit is below 5% |
| unstable | the interval is wider than 5% and has more than one of met, limited and missed |
| unstable | A/A does not include 1, and the interval includes the goal when it is widened by as much |
| missed | none of these |
| measured wrong | the interval is beyond the physical limit |
| figure | there is no goal |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .intervals import Interval, median
from .rounds import WIDE, Rounds

NEAR = 1.05  # within this factor of its limit a row is limited by it
BEYOND = 1.03  # a row may pass its physical limit by noise of this factor
CONTROL = 0.01  # the control may miss 1 by this much: one in twenty 95% intervals does


@dataclass(frozen=True)
class Row:
    """`value` is ours over `against`, or a figure in `unit`; `goal` and `bound` read like '<= 1.5'."""

    name: str
    value: float
    against: str
    goal: str = ""
    low: float | None = None
    high: float | None = None
    unit: str = ""
    rounds: int = 1
    control: tuple[float, float, float] | None = None  # low, median, high of the reference against itself
    bound: str = ""  # the physical limit
    limited_by: str = ""
    limit: float | None = None  # what the limit itself reaches, on the scale of `value`
    excess: float | None = None  # the upper end of the interval of our time over the limit's
    job: str = ""  # the row of the table of goals that this answers

    @property
    def interval(self) -> Interval:
        return Interval(self.value, self.low, self.high)

    @property
    def verdict(self) -> str:
        if self.bound and self._beyond():
            return "measured wrong"
        if not self.goal:
            return "figure"
        ends = [self.value] if self.low is None or self.high is None else [self.low, self.high]
        shaky = self.control is not None and not self.control[0] - CONTROL <= 1 <= self.control[2] + CONTROL
        if shaky:
            assert self.control is not None
            drift = max(self.control[2], 1 / self.control[0])
            ends = [min(ends) / drift, max(ends) * drift]
        wide = len(ends) > 1 and self.interval.width > WIDE
        both = len({reaches(end, self.goal) for end in ends}) > 1
        at_limit = self.excess is not None and self.excess <= NEAR
        if both and (shaky or wide):
            return "at limit" if at_limit and not shaky else "unstable"
        if both:
            return "at goal"
        if reaches(self.value, self.goal):
            return "met"
        if self.limit is None or reaches(self.limit, self.goal):
            return "missed"
        if at_limit or self._near_limit(self.value):
            return "limited"
        return "unstable" if wide and any(self._near_limit(end) for end in ends) else "missed"

    def _beyond(self) -> bool:
        """All of the interval is on the wrong side of the physical limit, by more than noise."""
        sign, bound = parse(self.bound)
        ends = [end for end in (self.low, self.value, self.high) if end is not None]
        return min(ends) > bound * BEYOND if sign == "<=" else max(ends) < bound / BEYOND

    def _near_limit(self, value: float) -> bool:
        assert self.limit is not None
        return value <= self.limit * NEAR if parse(self.goal)[0] == "<=" else value >= self.limit / NEAR

    def joined(self, again: Row) -> Row:
        """This row and the same one from another launch: the mean, with an interval that covers both."""
        ends = [end for row in (self, again) for end in (row.low, row.value, row.high) if end is not None]
        limits = [row.limit for row in (self, again) if row.limit is not None]
        excesses = [row.excess for row in (self, again) if row.excess is not None]
        control = self.control
        if control and again.control:
            lows, middles, highs = zip(control, again.control, strict=True)
            control = (min(lows), median(middles), max(highs))
        return replace(
            self, value=median([self.value, again.value]), low=min(ends), high=max(ends), control=control,
            rounds=self.rounds + again.rounds, limit=median(limits) if limits else None,
            excess=max(excesses, default=None),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Row:
        known = {key: value for key, value in found.items() if key in cls.__dataclass_fields__}
        return cls(**{**known, "control": tuple(known["control"]) if known.get("control") else None})

    def __str__(self) -> str:
        goal = f", goal {self.goal}" if self.goal else ""
        limit = f" · limited by {self.limited_by}" if self.limited_by else ""
        return f"{figure(self)} of {self.against}: {self.name} ({self.verdict}{goal}){limit}"


def figure(row: Row) -> str:
    """'1.082 (1.071-1.093)', with the unit."""
    shown = number(row.value) + (f" {row.unit}" if row.unit else "")
    return shown if row.low is None or row.high is None else f"{shown} ({number(row.low)}-{number(row.high)})"


def number(x: float) -> str:
    return (
        f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.1f}" if abs(x) >= 100 else f"{x:.2f}" if abs(x) >= 10 else f"{x:.3f}"
    )


def parse(goal: str) -> tuple[str, float]:
    match = re.fullmatch(r"(<=|>=) ([\d.]+)", goal)
    assert match, f"a goal reads like '<= 1.5', not {goal!r}"
    return match[1], float(match[2])


def reaches(value: float, goal: str) -> bool:
    sign, bound = parse(goal)
    return value <= bound if sign == "<=" else value >= bound


def row(name: str, value: float, against: str, goal: str = "", **more: Any) -> Row:
    """A row of one value without an interval."""
    return Row(name, value, against, goal, **more)


def timed(
    name: str, rounds: Rounds, side: str, against: str, goal: str = "", *, over: str | None = None, speed: bool = False,
    bound: str = "", limited_by: str = "", limit: str | None = None, job: str = "",
) -> Row:  # fmt: skip
    """A row from interleaved rounds: the time of `side` over the reference (or `over`), or its inverse, the speed.

    `limit` names a side that does only what cannot be avoided; the row shows what that reaches.
    """
    ratio = rounds.speed if speed else rounds.ratio
    found, control = ratio(side, over), rounds.control
    return Row(
        name, found.value, against, goal, found.low, found.high, rounds=rounds.count, bound=bound, job=job,
        control=None if control is None or control.low is None or control.high is None
        else (control.low, control.value, control.high),
        limited_by=limited_by, limit=None if limit is None else ratio(limit, over).value,
        excess=None if limit is None else rounds.ratio(side, limit).high,
    )  # fmt: skip


def several(name: str, values: Sequence[float], against: str, goal: str = "", **more: Any) -> Row:
    """A row of a few launches, of memory for example: the median, and the range as its interval."""
    return Row(
        name, median(values), against, goal, min(values), max(values), rounds=len(values), **more
    )  # fmt: skip
