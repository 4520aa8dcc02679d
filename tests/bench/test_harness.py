"""The harness on made-up timings: a fake clock that every side advances by a known amount."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers.bench_files import bench_module

intervals = bench_module("harness.intervals")
rounds_ = bench_module("harness.rounds")
rows_ = bench_module("harness.rows")


class Clock:
    """Time that passes only when a side says so; `drift` makes everything slower as it passes."""

    def __init__(self, drift: float = 0.0) -> None:
        self.now, self.drift, self.calls = 0.0, drift, list[str]()

    def __call__(self) -> float:
        return self.now

    def side(self, name: str, seconds: Callable[[], float]) -> Callable[[], None]:
        def run() -> None:
            self.calls.append(name)
            self.now += seconds() * (1 + self.drift * self.now)

        return run


def noisy(mean: float, noise: float, seed: int) -> Callable[[], float]:
    draw = random.Random(seed)
    return lambda: mean * math.exp(noise * draw.gauss(0, 1))


def measured(clock: Clock, ours: Callable[[], float], peer: Callable[[], float], **more: object) -> Any:
    sides = {"peer": clock.side("peer", peer), "ours": clock.side("ours", ours)}
    return rounds_.measure(sides, "peer", clock=clock, **{"seconds": 30.0, **more})


@pytest.mark.parametrize("n", [3, 5, 6, 9, 20, 41])
def test_a_95_percent_interval_includes_the_true_median_in_95_percent_of_runs(n: int) -> None:
    draw, hits = random.Random(n), 0
    for _ in range(1000):
        hits += intervals.median_interval([math.exp(0.1 * draw.gauss(0, 1)) for _ in range(n)]).includes(1.0)
    assert hits / 1000 >= 0.93


def test_an_interval_of_many_values_is_narrower_than_their_range() -> None:
    found = intervals.median_interval([1 + i / 100 for i in range(41)])
    assert 1.13 < found.low < 1.14 < found.value == 1.2 < 1.26 < found.high < 1.27  # 14th and 15th, 27th and 28th


def test_one_outlier_of_seven_is_not_the_end_of_the_interval() -> None:
    found = intervals.median_interval([0.60, 0.61, 0.62, 0.62, 0.63, 0.64, 1.20])
    assert found.high == pytest.approx(0.64 * (1.20 / 0.64) ** (1 - 0.7333), rel=1e-3)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_few_rounds_have_an_interval_from_the_noise_of_all_sides(count: int) -> None:
    """It holds the true ratio as often as it says, and is narrower than one from the ratios alone."""
    draw, hits, narrower = random.Random(count), 0, 0
    for _ in range(1000):
        found = rounds_.Rounds("peer")
        for _ in range(count):
            slow = math.exp(0.2 * draw.gauss(0, 1))  # what a whole round has in common
            for side, mean in (("peer", 1.0), ("ours", 1.5), ("limit", 1.4), (rounds_.AGAIN, 1.0)):
                found.seconds.setdefault(side, []).append(slow * mean * math.exp(0.05 * draw.gauss(0, 1)))
        ratio = found.ratio("ours")
        hits += ratio.includes(1.5) and found.ratio("ours", "limit").includes(1.5 / 1.4)
        narrower += ratio.width < intervals.median_interval(found.ratios("ours")).width
    assert hits / 1000 >= 0.88  # two intervals at a time
    assert narrower / 1000 > 0.55


def test_one_value_has_no_interval() -> None:
    assert intervals.median_interval([2.0]) == intervals.Interval(2.0)
    assert intervals.median_interval([2.0]).width == math.inf


def test_the_ratio_of_two_noisy_sides_is_found_and_the_control_includes_one() -> None:
    found = measured(Clock(), noisy(1.2, 0.03, 1), noisy(1.0, 0.03, 2))
    assert found.ratio("ours").includes(1.2)
    assert found.ratio("ours").width < 0.05
    assert found.control.includes(1.0)


def test_a_drift_of_the_machine_cancels() -> None:
    found = measured(Clock(drift=0.01), lambda: 1.0, lambda: 1.0, seconds=20.0)
    assert max(found.seconds["ours"]) > 1.15 * min(found.seconds["ours"])
    assert found.ratio("ours").value == pytest.approx(1.0, abs=2e-3)


def test_the_order_is_reversed_in_every_second_round() -> None:
    clock = Clock()
    measured(clock, lambda: 1.0, lambda: 1.0, most=2, warmup=False)
    assert clock.calls == ["peer", "ours", "peer", "peer", "ours", "peer"]


def test_a_side_that_is_not_judged_may_be_measured_in_every_third_round_of_every_set_up() -> None:
    clock = Clock()
    seconds = {"peer": 1.0, "ours": 1.2, "limit": 1.1}
    sides = {name: clock.side(name, itertools.repeat(s).__next__) for name, s in seconds.items()}
    kwargs = {"seconds": 1.0, "clock": clock, "most": 7, "fewest": 7, "warmup": False, "seldom": ("limit",)}
    found = rounds_.measure(sides, "peer", **kwargs)
    assert (clock.calls.count("ours"), clock.calls.count("limit")) == (7, 3)
    found = rounds_.measure(sides, "peer", rounds=found, **kwargs)
    assert len(found.ratios("ours")) == 14
    assert found.ratio("limit").value == pytest.approx(1.1)
    assert found.ratio("ours", over="limit").low == pytest.approx(1.2 / 1.1)


def test_a_short_side_is_repeated_within_a_sample() -> None:
    clock = Clock()
    found = measured(clock, lambda: 1e-3, lambda: 1.0, most=1)
    assert clock.calls.count("ours") >= 20
    assert found.seconds["ours"] == [pytest.approx(1e-3)]


def test_what_a_side_measures_itself_counts_instead_of_the_call() -> None:
    clock = Clock()
    sides = {"peer": lambda: rounds_.Seconds(2.0), "ours": lambda: rounds_.Seconds(3.0)}
    found = rounds_.measure(sides, "peer", seconds=1.0, clock=clock, most=3)
    assert found.ratio("ours").value == 1.5


def test_cleaning_up_is_not_timed() -> None:
    clock = Clock()
    found = measured(clock, lambda: 1.0, lambda: 1.0, after=clock.side("clean", lambda: 50.0), most=3)
    assert set(found.seconds["ours"]) == {1.0}


def test_a_stable_row_ends_at_its_time_and_a_wide_one_takes_up_to_three_times_as_long() -> None:
    still, shaky = Clock(), Clock()
    measured(still, lambda: 1.0, lambda: 1.0)
    found = measured(shaky, noisy(1.0, 0.5, 3), noisy(1.0, 0.5, 4))
    assert still.now < 40
    assert 85 < shaky.now < 110
    assert found.ratio("ours").width > rounds_.WIDE


def test_the_end_of_the_bench_cuts_a_row_short_but_leaves_an_interval() -> None:
    clock = Clock()
    found = measured(clock, lambda: 1.0, lambda: 1.0, seconds=1000.0, until=5.0)
    assert found.count == rounds_.LEAST


def test_another_set_up_widens_the_interval_to_its_median() -> None:
    clock = Clock()
    first = measured(clock, lambda: 1.0, lambda: 1.0, most=6)
    both = measured(clock, lambda: 1.2, lambda: 1.0, most=6, rounds=first)
    assert both.sessions == [6, 6]
    assert (both.ratio("ours").low, both.ratio("ours").high) == (pytest.approx(1.0), pytest.approx(1.2))


def test_speed_is_the_inverse_of_the_ratio() -> None:
    found = measured(Clock(), noisy(0.5, 0.02, 5), noisy(1.0, 0.02, 6))
    time, speed = found.ratio("ours"), found.speed("ours")
    assert (speed.low, speed.value, speed.high) == (1 / time.high, 1 / time.value, 1 / time.low)


def cases() -> Iterator[tuple[str, dict[str, object], str]]:
    calm = (0.99, 1.0, 1.01)
    yield "reached", {"value": 1.0, "low": 0.99, "high": 1.01}, "met"
    yield "missed", {"value": 1.2, "low": 1.19, "high": 1.21}, "missed"
    yield "narrow around the goal, missed", {"value": 1.11, "low": 1.09, "high": 1.12}, "at goal"
    yield "narrow around the goal, reached", {"value": 1.09, "low": 1.08, "high": 1.11}, "at goal"
    yield "wide around the goal", {"value": 1.2, "low": 1.0, "high": 1.4}, "unstable"
    yield "wide around the goal, reached", {"value": 1.05, "low": 1.0, "high": 1.4}, "unstable"
    yield "wide but wholly missed", {"value": 3.0, "low": 2.5, "high": 3.5}, "missed"
    yield "wide but wholly reached", {"value": 0.5, "low": 0.3, "high": 0.7}, "met"
    yield "calm control", {"value": 1.0, "low": 0.99, "high": 1.01, "control": calm}, "met"
    beside: dict[str, object] = {"value": 1.0, "low": 0.99, "high": 1.01}
    yield "control beside 1, by less than the goal is away", {**beside, "control": (1.05, 1.06, 1.07)}, "met"
    yield "control beside 1, by more", {**beside, "control": (0.86, 0.87, 0.88)}, "unstable"
    yield "limit missed too", {"value": 1.2, "low": 1.19, "high": 1.21, "limit": 1.17}, "limited"
    yield "limit reaches the goal", {"value": 1.2, "low": 1.19, "high": 1.21, "limit": 1.05}, "missed"
    yield "far from the limit", {"value": 1.5, "low": 1.49, "high": 1.51, "limit": 1.17}, "missed"
    yield "wide, from near the limit to far", {"value": 1.3, "low": 1.2, "high": 1.5, "limit": 1.17}, "unstable"
    yield "wide, all far from the limit", {"value": 1.4, "low": 1.3, "high": 1.5, "limit": 1.17}, "missed"
    yield (
        "wide around the goal, at its limit",
        {"value": 1.1, "low": 1.0, "high": 1.2, "limit": 1.1, "excess": 1.04},
        "at limit",
    )
    yield (
        "wide around the goal, beside its limit",
        {"value": 1.1, "low": 1.0, "high": 1.2, "limit": 1.1, "excess": 1.06},
        "unstable",
    )
    yield (
        "wide and missed, at its limit",
        {"value": 1.3, "low": 1.2, "high": 1.5, "limit": 1.17, "excess": 1.04},
        "limited",
    )
    yield "beyond physics", {"value": 0.9, "low": 0.89, "high": 0.91, "bound": ">= 1.0"}, "measured wrong"
    yield "beyond physics by noise", {"value": 0.98, "low": 0.95, "high": 1.01, "bound": ">= 1.0"}, "met"
    yield "one value", {"value": 1.2}, "missed"
    yield "no goal", {"value": 1.2, "goal": ""}, "figure"


@pytest.mark.parametrize(("given", "verdict"), [pytest.param(g, v, id=name) for name, g, v in cases()])
def test_verdicts(given: dict[str, object], verdict: str) -> None:
    assert rows_.Row(**{"name": "a", "against": "b", "goal": "<= 1.1", **given}).verdict == verdict


def test_a_speed_above_its_physical_limit_is_measured_wrong() -> None:
    row = rows_.Row("decode", 1.43, "reading the weights", ">= 0.83", 1.4, 1.45, bound="<= 1.0")
    assert row.verdict == "measured wrong"


def test_rounds_become_a_row_with_its_control_and_its_limit() -> None:
    clock = Clock()
    sides = {name: clock.side(name, noisy(mean, 0.01, seed)) for seed, (name, mean) in enumerate(
        {"peer": 1.0, "ours": 1.2, "floor": 1.15}.items())}  # fmt: skip
    found = rounds_.measure(sides, "peer", seconds=60.0, clock=clock)
    row = rows_.timed("a", found, "ours", "the peer", "<= 1.1", limit="floor", limited_by="the floor")
    assert row.verdict == "limited"
    assert row.limit == pytest.approx(1.15, rel=0.01)
    assert row.excess == pytest.approx(1.2 / 1.15, rel=0.02)
    assert row.control is not None
    assert row.control[0] <= 1 <= row.control[2]
    assert rows_.Row.from_dict(row.to_dict()) == row


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5, 2.0])
def test_an_exponent_is_found_within_its_interval(exponent: float) -> None:
    draw = random.Random(7)
    samples = [(n, [n**exponent * math.exp(0.05 * draw.gauss(0, 1)) for _ in range(9)]) for n in (1, 2, 4, 8, 16)]
    found = intervals.growth(samples).exponent
    assert found.low - 0.02 <= exponent <= found.high + 0.02
    assert found.high - found.low < 0.2


def test_goals_that_cannot_be_read_are_refused() -> None:
    for goal, value in itertools.product(("< 1", "1.0", "fast"), (0.5, 2.0)):
        with pytest.raises(AssertionError, match="a goal reads like"):
            rows_.reaches(value, goal)
