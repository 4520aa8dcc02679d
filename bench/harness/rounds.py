"""Interleaved rounds: every side once per round, the reference before and after the others, the order reversed in
every second round, so that a drift of the machine cancels.

The ratio of a round is a side over the mean of the round's two references. The A/A control is the second reference
over the first: the same thing measured twice, so its interval must include 1, and its width is the noise.

Where a round takes so long that there are fewer than six, the intervals use the noise of all sides together.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .intervals import ENOUGH, Interval, Noise, median, median_interval, pooled_noise

Side = Callable[[], object]
Clock = Callable[[], float]
AGAIN = "the reference again"
SHORTEST = 0.02  # seconds; a shorter side is repeated within a sample
WIDE = 0.05  # relative width of an interval from which on a row is repeated longer
FEWEST, MOST = 6, 60  # rounds
LEAST = 3  # rounds that are measured even if the time is over
SELDOM = 3  # a side that is not judged may be measured in every third round
LONGER = 3.0  # a row that is not stable may take this many times its seconds


class Seconds(float):
    """Returned by a side that measures itself: this time counts, not that of the call."""


@dataclass
class Rounds:
    """The seconds of every side in every round; NaN where a side was not measured."""

    reference: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    sessions: list[int] = field(default_factory=list)  # rounds of each set-up

    @property
    def count(self) -> int:
        return len(self.seconds[self.reference])

    def ratios(self, side: str, over: str | None = None) -> list[float]:
        """One ratio for each round in which both were measured; `over` is the reference unless given."""
        return [ratio for ratio in self._paired(side, over) if not math.isnan(ratio)]

    def _paired(self, side: str, over: str | None) -> list[float]:
        above = self._denominator() if side == self.reference else self.seconds[side]
        below = self._denominator() if over in (None, self.reference) else self.seconds[over]
        return [a / b for a, b in zip(above, below, strict=True)]

    def _denominator(self) -> list[float]:
        first, again = self.seconds[self.reference], self.seconds.get(AGAIN)
        return first if again is None else [(a + b) / 2 for a, b in zip(first, again, strict=True)]

    def ratio(self, side: str, over: str | None = None) -> Interval:
        """Median of the paired ratios; the interval also includes the median of every set-up."""
        found = median_interval(self.ratios(side, over), self._noise(side, over))
        paired = self._paired(side, over)
        if len(self.sessions) > 1:
            for length in self.sessions:
                session, paired = paired[:length], paired[length:]
                found = found.hull(median([ratio for ratio in session if not math.isnan(ratio)]))
        return found

    def _noise(self, side: str, over: str | None) -> Noise | None:
        """That of a ratio, from all sides that were measured in every round; None if order statistics serve."""
        steady = {name: taken for name, taken in self.seconds.items() if not any(map(math.isnan, taken))}
        wanted = {side, over or self.reference}
        if not 2 <= self.count < ENOUGH or len(steady) < 2 or not wanted <= steady.keys():
            return None
        single = pooled_noise(list(steady.values()))
        averaged = AGAIN in self.seconds and side != AGAIN and self.reference in (side, over or self.reference)
        return Noise(single.deviation * math.sqrt(1.5 if averaged else 2.0), single.degrees)

    def speed(self, side: str, over: str | None = None) -> Interval:
        """The inverse: how many times as fast as the reference."""
        time_ratio = self.ratio(side, over)
        if time_ratio.low is None or time_ratio.high is None:
            return Interval(1 / time_ratio.value)
        return Interval(1 / time_ratio.value, 1 / time_ratio.high, 1 / time_ratio.low)

    def time(self, side: str) -> Interval:
        return median_interval(self.seconds[side])

    @property
    def control(self) -> Interval | None:
        if AGAIN not in self.seconds:
            return None
        ratios = [b / a for a, b in zip(self.seconds[self.reference], self.seconds[AGAIN], strict=True)]
        return median_interval(ratios, self._noise(AGAIN, None))

    def wide(self, judged: tuple[str, ...]) -> bool:
        return any(self.ratio(side).width > WIDE for side in judged)


def measure(
    sides: Mapping[str, Side], reference: str, *, seconds: float, until: float = math.inf, judged: tuple[str, ...] = (),
    after: Side | None = None, rounds: Rounds | None = None, clock: Clock = time.perf_counter, fewest: int = FEWEST,
    most: int = MOST, control: bool = True, warmup: bool = True, seldom: tuple[str, ...] = (),
) -> Rounds:  # fmt: skip
    """Measure `sides` in interleaved rounds for `seconds`, and longer while a ratio is not known to 5%.

    Args:
        sides: what to call; one of them is the `reference`.
        seconds: the planned time. A row that is wide after it gets up to three times as much.
        until: an end on the clock, which only the first rounds may pass.
        judged: the sides whose ratios must become narrow; all but the reference by default.
        after: called after every call of a side, not timed (for what a side leaves behind).
        rounds: an earlier measurement of the same sides with another set-up, to continue.
        seldom: sides that are measured in the first of every three rounds, so that the others get more rounds.
    """
    assert reference in sides, reference
    judged = judged or tuple(side for side in sides if side != reference)
    order = [reference, *(side for side in sides if side != reference), *([AGAIN] if control else [])]
    calls: dict[str, Side] = {**sides, AGAIN: sides[reference]}
    repeats = dict.fromkeys(order, 1)
    if warmup:
        for side in (side for side in order if side != AGAIN):
            took = _sample(calls[side], 1, after, clock)
            if took < 1.0 and not after:  # the first call may compile or load
                took = _sample(calls[side], 1, after, clock)
            repeats[side] = 1 if after or took >= SHORTEST else math.ceil(SHORTEST / max(took, 1e-7))
        repeats[AGAIN] = repeats[reference]
    found = rounds or Rounds(reference)
    gc.collect()
    gc.freeze()  # a full collection visits every object of torch and transformers, which no side is about
    start, turn = clock(), 0
    while True:
        for side in order if turn % 2 == 0 else reversed(order):
            skipped = side in seldom and turn % SELDOM
            took = math.nan if skipped else _sample(calls[side], repeats[side], after, clock)
            found.seconds.setdefault(side, []).append(took)
        turn += 1
        now = clock()
        if turn >= most or (turn >= LEAST and now >= until):
            break
        if turn >= fewest and now - start >= seconds and not (found.wide(judged) and now - start < LONGER * seconds):
            break
    gc.unfreeze()
    found.sessions.append(turn)
    return found


def _sample(call: Side, repeats: int, after: Side | None, clock: Clock) -> float:
    """Seconds of one call, as the mean of `repeats`."""
    start, own = clock(), 0.0
    returned: object = None
    for _ in range(repeats):
        returned = call()
        if isinstance(returned, Seconds):
            own += returned
    took = clock() - start
    if after is not None:
        after()
    return (own if isinstance(returned, Seconds) else took) / repeats
