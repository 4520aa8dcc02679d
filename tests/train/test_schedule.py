"""The schedule has the same shape by steps and by time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.errors import BadRequest
from tiebeam.train.schedule import Budget, Schedule


def test_the_multiplier_warms_up_stays_and_decays() -> None:
    budget, schedule = Budget(steps=1000), Schedule(warmup_steps=10, decay_from=0.5)
    rates = [schedule.multiplier(step, budget.progress(step, 0.0)) for step in range(1000)]
    assert rates[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert set(rates[10:501]) == {1.0}
    assert rates[750] == pytest.approx(0.5)
    assert rates[-1] == pytest.approx(0.002)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_schedule_by_time_has_the_shape_of_one_by_steps() -> None:
    by_steps, by_clock, schedule = Budget(steps=200), Budget(seconds=100.0), Schedule()
    for step in range(200):
        at = by_steps.progress(step, 0.0)
        assert by_clock.progress(step, step * 0.5) == pytest.approx(at)
        assert schedule.multiplier(step, at) == pytest.approx(schedule.multiplier(step, step * 0.5 / 100))


def test_whichever_budget_is_used_up_first_ends_the_run() -> None:
    budget = Budget(steps=100, seconds=60.0)
    assert budget.progress(50, 6.0) == 0.5
    assert budget.progress(5, 45.0) == 0.75
    assert budget.progress(5, 61.0) == budget.progress(100, 1.0) == 1.0


def test_momentum_warms_up_and_stays() -> None:
    schedule = Schedule(momentum=(0.85, 0.95), momentum_steps=100)
    assert schedule.momentum_at(0, 0.0) == pytest.approx(0.85)
    assert schedule.momentum_at(50, 0.01) == pytest.approx(0.9)
    assert schedule.momentum_at(500, 0.1) == pytest.approx(0.95)


def test_warmups_end_early_in_a_short_run() -> None:
    schedule = Schedule(warmup_steps=15, momentum_steps=100)
    budget = Budget(steps=20)
    assert schedule.multiplier(2, budget.progress(2, 0.0)) == 1.0
    assert schedule.momentum_at(5, budget.progress(5, 0.0)) == pytest.approx(0.95)


def test_a_final_multiplier_and_no_decay() -> None:
    assert Schedule(final=0.1).multiplier(999, 1.0) == pytest.approx(0.1)
    assert Schedule(decay_from=1.0).multiplier(999, 1.0) == 1.0
    assert Schedule(warmup_steps=0, momentum_steps=0).multiplier(0, 0.0) == 1.0


@given(st.integers(0, 500), st.floats(0, 1), st.integers(0, 30), st.floats(0, 1), st.floats(0, 1))
def test_multipliers_are_between_0_and_1(
    step: int, progress: float, warmup: int, decay_from: float, final: float
) -> None:
    schedule = Schedule(warmup_steps=warmup, decay_from=decay_from, final=final)
    assert 0.0 <= schedule.multiplier(step, progress) <= 1.0
    assert 0.85 <= schedule.momentum_at(step, progress) <= 0.95 + 1e-12


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Budget(), "needs `steps` or `seconds`"),
        (lambda: Budget(steps=0), "at least 1, not 0"),
        (lambda: Budget(seconds=0.0), "above 0 and finite, not 0.0"),
        (lambda: Budget(seconds=float("inf")), "not inf"),
        (lambda: Schedule(decay_from=1.5), "decay_from=1.5"),
        (lambda: Schedule(final=-0.1), "final=-0.1"),
        (lambda: Schedule(momentum=(0.9, 1.0)), r"momentum=\(0.9, 1.0\)"),
        (lambda: Schedule(warmup_steps=-1), "warmup_steps=-1"),
    ],
)
def test_invalid_schedules_are_refused(make, sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        make()
