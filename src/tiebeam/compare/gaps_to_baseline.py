"""The answers of every variant against the baseline, at every width and vocabulary, from the curves of the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tiebeam.compare.document import Answer, Cell, Gap, Ladder
from tiebeam.compare.equal_steps_time_size import Widths, equal_size, equal_steps, equal_time
from tiebeam.compare.held_out_curves import HeldOutCurve, windows_of

if TYPE_CHECKING:
    from tiebeam.compare.document import Question

BASELINE = "tied"


def baseline_of(curves: Sequence[HeldOutCurve]) -> str:
    """The variant that the others are compared with: tied if it was trained, else the first."""
    names = list(dict.fromkeys(curve.run.variant for curve in curves))
    return BASELINE if BASELINE in names else names[0]


def pair_answers(curves: Sequence[HeldOutCurve], cells: Sequence[Cell], match: str) -> dict[str, dict[str, Answer]]:
    """The answers of every other variant against the baseline: at the largest width, and on the ladder.

    They are about the first vocabulary.
    """
    vocab, baseline = curves[0].run.vocab, baseline_of(curves)
    ladders = {name: ladder for (name, v), ladder in _by_variant(curves).items() if v == vocab}
    minutes = _minutes(curves)
    by_name = {cell.name: cell for cell in cells}

    def params(curve: HeldOutCurve) -> float:
        if match == "params":  # the shapes were matched: what differs is rounding
            return by_name[ladders[baseline][curve.run.width][curve.run.seed].run.name].params
        return by_name[curve.run.name].params

    def packed(curve: HeldOutCurve) -> float:
        return by_name[curve.run.name].packed_bytes

    found: dict[str, dict[str, Answer]] = {}
    first = ladders[baseline]
    for name, second in ladders.items():
        if name == baseline:
            continue
        widest = max(first.keys() & second.keys())
        pair = (first[widest], second[widest])
        answers: dict[str, Answer] = {"steps": equal_steps(pair, minutes), "time": equal_time(pair, minutes)}
        questions: tuple[tuple[Question, Callable[[HeldOutCurve], float]], ...] = (("size", params), ("packed", packed))
        for question, size in questions:
            if answer := equal_size(question, (first, second), size, minutes):
                answers[question] = answer
        found[name] = answers
    return found


def make_ladder(curves: Sequence[HeldOutCurve], cells: Sequence[Cell]) -> Ladder:
    """Every cell, and the gap of every variant to the baseline at every width."""
    baseline, by_variant, minutes = baseline_of(curves), _by_variant(curves), _minutes(curves)
    gaps = []
    for (name, vocab), ladder in by_variant.items():
        if name == baseline:
            continue
        first = by_variant[baseline, vocab]
        for width in sorted(first.keys() & ladder.keys()):
            pair = (first[width], ladder[width])
            share = next(c.head_share for c in cells if (c.variant, c.width, c.vocab) == (baseline, width, vocab))
            gaps.append(Gap(name, width, vocab, share, equal_steps(pair, minutes), equal_time(pair, minutes)))
    return Ladder(
        baseline=baseline,
        widths=tuple(sorted({curve.run.width for curve in curves})),
        vocabs=tuple(dict.fromkeys(curve.run.vocab for curve in curves)),
        seeds=tuple(sorted({curve.run.seed for curve in curves})),
        held_out=windows_of(curves[0].run).to_dict(),
        cells=tuple(cells),
        gaps=tuple(gaps),
    )


def _by_variant(curves: Sequence[HeldOutCurve]) -> Mapping[tuple[str, int], Widths]:
    found: dict[tuple[str, int], dict[int, dict[int, HeldOutCurve]]] = {}
    for curve in curves:
        run = curve.run
        found.setdefault((run.variant, run.vocab), {}).setdefault(run.width, {})[run.seed] = curve
    return found


def _minutes(curves: Sequence[HeldOutCurve]) -> float:
    """Training time of all runs together."""
    return sum(float(curve.seconds[-1]) for curve in curves) / 60
