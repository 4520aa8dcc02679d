"""The three questions from the same runs: which variant is better at equal steps, at equal time, at equal size?

Equal steps: both curves at the last step that both have. Equal time: the ratio of their step times is measured on
slices that alternated, and the slower one's curve is read at the step that it had reached when the faster one ended.
Equal size: the loss as a function of log(size) is interpolated between the widths of the ladder, and the two functions
are compared at every size that was trained and lies in the range of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from typing import Any

import numpy as np

from tiebeam.compare.document import Answer, Question
from tiebeam.compare.held_out_curves import Array, HeldOutCurve
from tiebeam.compare.paired_statistics import Estimate, estimate, interpolation_weights, median_ratio
from tiebeam.compare.verdict import answer_sentence, what_is_needed

Seeds = Mapping[int, HeldOutCurve]  # the curves of one variant at one width, by seed
Pair = tuple[Seeds, Seeds]
Widths = Mapping[int, Seeds]
LEAST_SLICES = 3


def equal_steps(pair: Pair, minutes: float) -> Answer:
    """Compare at the last step that both have. `minutes` is the training time of the whole comparison so far."""
    steps = min(_last_step(side) for side in pair)
    return _at_steps("steps", pair, (steps, steps), minutes, halfway=_halfway(pair, steps))


def equal_time(pair: Pair, minutes: float) -> Answer:
    """Compare after the same training seconds: those that the faster of the two took."""
    ratio, error = step_time_ratio(pair)
    ends = (_last_step(pair[0]), _last_step(pair[1]))
    time = min(ends[0], ends[1] * ratio)  # in steps of the first
    at = (time, time / ratio)
    if all(abs(step - end) <= max(1.0, 0.01 * end) for step, end in zip(at, ends, strict=True)):
        at, error = ends, error if ends[0] == ends[1] else 0.0  # equal speed, or the runs were given equal time
    earliest = max(float(curve.steps[0]) for side in pair for curve in side.values())
    at = (max(at[0], earliest), max(at[1], earliest))
    slope = max(abs(_slope(side, step)) for side, step in zip(pair, at, strict=True))
    return _at_steps("time", pair, at, minutes, clock_error=slope * error)


def _halfway(pair: Pair, last: float) -> dict[str, float] | None:
    """Step and difference at the check that is nearest to half of the run; None if there was none before the end."""
    curve = next(iter(pair[0].values()))
    earlier = [float(step) for step in curve.steps if step < last]
    if not earlier:
        return None
    step = min(earlier, key=lambda s: abs(s - last / 2))
    first, second = (np.mean([side[s].at_step(step) for s in _seeds(pair)], axis=0) for side in pair)  # [G]
    return {"step": step, "difference": float(curve.bits(second) - curve.bits(first))}


def step_time_ratio(pair: Pair) -> tuple[float, float]:
    """Step time of the second variant over that of the first, and the standard error of its logarithm."""
    first, second = pair
    times = [
        (first[seed].slices[step], second[seed].slices[step])
        for seed in _seeds(pair)
        for step in first[seed].slices.keys() & second[seed].slices.keys()
        if min(first[seed].slices[step], second[seed].slices[step]) > 0
    ]
    if len(times) < LEAST_SLICES:  # a run of a few steps: the whole clocks
        clocks = [sum(curve.seconds[-1] / curve.steps[-1] for curve in side.values()) for side in pair]
        return (float(clocks[1] / clocks[0]) if min(clocks) > 0 else 1.0), 0.1
    return median_ratio([a for a, _ in times], [b for _, b in times])


def equal_size(
    question: Question, ladders: tuple[Widths, Widths], size: Callable[[HeldOutCurve], float], minutes: float
) -> Answer | None:
    """Compare two ladders at equal sizes; None if the ranges of their sizes do not overlap."""
    sizes = [_log_sizes(ladder, size) for ladder in ladders]  # ascending, by width
    low, high = max(min(s.values()) for s in sizes), min(max(s.values()) for s in sizes)
    points = sorted({s for side in sizes for s in side.values() if low <= s <= high})
    seeds = sorted(set.intersection(*(set(side) for ladder in ladders for side in ladder.values())))
    if not points or not seeds:
        return None
    mean = []
    for ladder, at in zip(ladders, sizes, strict=True):
        weights = np.mean([interpolation_weights(list(at.values()), point) for point in points], axis=0)  # [W]
        ends = np.array([[ladder[width][seed].losses[-1] for seed in seeds] for width in at])  # [W, S, G]
        mean.append(np.tensordot(weights, ends, axes=1))  # [S, G]
    curve = _any_curve(ladders[0])
    basis_measured = all(min(abs(s - point) for s in side.values()) < 1e-3 for side in sizes for point in points)
    at_sizes = {"sizes": [round(exp(point)) for point in points], "widths": list(sizes[0]), "vocab": curve.run.vocab}
    found = estimate(mean[1] - mean[0], curve.text_bytes)
    names = (curve.run.config.variant, _any_curve(ladders[1]).run.config.variant)
    return _answer(question, names, found, mean, curve, basis_measured, at_sizes, len(seeds), minutes)


def _at_steps(
    question: Question, pair: Pair, at: tuple[float, float], minutes: float, clock_error: float = 0.0,
    halfway: dict[str, float] | None = None,
) -> Answer:  # fmt: skip
    seeds = _seeds(pair)
    first, second = (
        np.stack([side[seed].at_step(step) for seed in seeds]) for side, step in zip(pair, at, strict=True)
    )  # [S, G]
    curves = [next(iter(side.values())) for side in pair]
    found = estimate(second - first, curves[0].text_bytes, clock_error)
    measured = all(step in curve.steps for curve, step in zip(curves, at, strict=True))
    seconds = [
        float(np.mean([np.interp(step, side[s].steps, side[s].seconds) for s in seeds]))
        for side, step in zip(pair, at, strict=True)
    ]
    where = {
        "width": curves[0].run.width, "vocab": curves[0].run.vocab, "steps": [round(step) for step in at],
        "seconds": seconds, **({"halfway": halfway} if halfway else {}),
    }  # fmt: skip
    variants = (curves[0].run.config.variant, curves[1].run.config.variant)
    return _answer(question, variants, found, (first, second), curves[0], measured, where, len(seeds), minutes)


def _answer(
    question: Question, variants: tuple[Any, Any], found: Estimate, nats: Sequence[Array], curve: HeldOutCurve,
    measured: bool, at: dict[str, Any], seeds: int, minutes: float,
) -> Answer:  # fmt: skip
    bpb = [float(curve.bits(side.mean(axis=0))) for side in nats]
    winner = None if found.includes_zero else variants[0 if found.difference > 0 else 1].name
    titles = (variants[0].title, variants[1].title)
    return Answer(
        question=question, first=variants[0].name, second=variants[1].name, difference=found.difference,
        ci_low=found.low, ci_high=found.high, includes_zero=found.includes_zero, winner=winner, first_bpb=bpb[0],
        second_bpb=bpb[1], basis="measured" if measured else "interpolated", at=at, seeds=seeds,
        documents=len(curve.text_bytes), errors=found.errors,
        sentence=answer_sentence(question, titles, found, (bpb[0], bpb[1]), at),
        needed=what_is_needed(found, seeds, minutes),
    )  # fmt: skip


def _slope(side: Seeds, step: float) -> float:
    """Change of the loss in bits per byte with the logarithm of the steps, at that step."""
    curve = next(iter(side.values()))
    before = max(float(curve.steps[0]), 0.9 * step)
    if before >= step:
        return 0.0
    change = curve.bits(curve.at_step(step)) - curve.bits(curve.at_step(before))
    return float(change) / log(step / before)


def _log_sizes(ladder: Widths, size: Callable[[HeldOutCurve], float]) -> dict[int, float]:
    found = {width: log(np.mean([size(curve) for curve in side.values()])) for width, side in ladder.items()}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _any_curve(ladder: Widths) -> HeldOutCurve:
    return next(iter(next(iter(ladder.values())).values()))


def _last_step(side: Seeds) -> float:
    return float(min(curve.steps[-1] for curve in side.values()))


def _seeds(pair: Pair) -> list[int]:
    return sorted(set(pair[0]) & set(pair[1]))
