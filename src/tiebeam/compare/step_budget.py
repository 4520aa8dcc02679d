"""From a training time to a number of steps: every width and variant is timed for a few steps first.

All runs take the same number of steps, so that they see the same text. The number is fixed once per comparison and
stored in its plan: a resumed comparison ends where an uninterrupted one does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tiebeam.corpus import Batches
from tiebeam.train import Distribution
from tiebeam.train.backends import make_backend

if TYPE_CHECKING:
    from tiebeam.compare.train_runs import Run

LEAST_STEPS = 20
_WARMUP, _TIMED = 2, 3


def steps_for_minutes(minutes: float, groups: Sequence[Sequence[Run]], distribution: Distribution | None = None) -> int:
    """The number of steps with which all runs together take about `minutes` of training."""
    ranks = distribution or Distribution()
    known: dict[tuple[int, int, str], float] = {}  # seeds do not change the time of a step
    total = 0.0
    for runs in groups:
        for run in runs:
            key = (run.width, run.vocab, run.variant)
            known[key] = known.get(key) or step_seconds(run, ranks)
            total += known[key]
    return round_down(60 * minutes / total)


def round_down(steps: float) -> int:
    """To two significant digits, at least LEAST_STEPS.

    >>> round_down(1234.5), round_down(3.0)
    (1200, 20)
    """
    if steps < LEAST_STEPS:
        return LEAST_STEPS
    unit = 10 ** (math.floor(math.log10(steps)) - 1)
    return int(steps // unit * unit)


def step_seconds(run: Run, ranks: Distribution) -> float:
    """Seconds of one training step, the median of a few."""
    settings = replace(run.settings, steps=LEAST_STEPS, minutes=None)
    backend = make_backend(settings, settings.model(run.vocab), ranks)
    batches = Batches(run.corpus.train, settings.batch, settings.context, rank=ranks.rank, world=ranks.world_size)
    seconds = []
    with backend.running():
        for _ in range(_WARMUP + _TIMED):
            started = time.perf_counter()
            backend.forward_backward(batches, measure=False)
            backend.optimizer_step()
            backend.synchronize()
            seconds.append(time.perf_counter() - started)
    [agreed] = ranks.sum(sorted(seconds[_WARMUP:])[_TIMED // 2] if ranks.is_main else 0.0)
    return agreed
