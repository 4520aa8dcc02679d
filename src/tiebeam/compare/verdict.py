"""The verdict in two sentences: what came out, and how sure that is. It claims no more than the runs show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebeam.compare.held_out_losses import mean_and_error, paired_error

if TYPE_CHECKING:
    from tiebeam.compare.run_metrics import Examined
    from tiebeam.corpus import Corpus

ONE_SEED_NOISE = 0.005
"""bpb. Runs of a few minutes that differ in nothing but the seed come out about this far apart."""
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # two-sided, by degrees of freedom


@dataclass(frozen=True, slots=True)
class Verdict:
    """`difference` is bpb of the second less the first: positive means that the first did better."""

    first: str
    second: str
    difference: float | None
    half_width: float | None
    """Of a 95% interval."""
    seeds: int
    winner: str | None
    sentences: tuple[str, str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(examined: Sequence[Examined], corpus: Corpus, match: str) -> Verdict:
    """Tied against untied where both ran, else the first two variants."""
    by_variant: dict[str, dict[int, Examined]] = {}
    for one in examined:
        by_variant.setdefault(one.run.contender.variant.name, {})[one.run.seed] = one
    names = list(by_variant)
    if len(names) < 2:
        only = next(iter(by_variant[names[0]].values()))
        title = only.run.contender.variant.title
        mean, _ = mean_and_error([e.record["val_bpb"] for e in by_variant[names[0]].values()])
        return Verdict(names[0], "", None, None, len(by_variant[names[0]]), None, (
            f"Only {title} was trained: it reached {mean:.4f} bits per byte.",
            "There is nothing to compare it with; name another with --variants.",
        ))  # fmt: skip
    first, second = ("tied", "untied") if {"tied", "untied"} <= set(names) else (names[0], names[1])
    a, b = by_variant[first], by_variant[second]
    seeds = sorted(set(a) & set(b))
    differences = [b[s].record["val_bpb"] - a[s].record["val_bpb"] for s in seeds]
    difference, error = mean_and_error(differences)
    if error is None:
        half = 1.96 * paired_error(b[seeds[0]].losses, a[seeds[0]].losses, corpus)
        half = half if np.isfinite(half) else ONE_SEED_NOISE
        clear = abs(difference) > max(half, ONE_SEED_NOISE)
    else:
        half = _t95(len(seeds) - 1) * error
        clear = abs(difference) > half
    winner = (first if difference > 0 else second) if clear else None
    return Verdict(
        first, second, difference, half, len(seeds), winner,
        (_outcome(a, b, seeds, difference, winner, match), _certainty(difference, half, len(seeds), clear)),
    )  # fmt: skip


def _outcome(
    a: dict[int, Examined], b: dict[int, Examined], seeds: list[int], difference: float, winner: str | None, match: str
) -> str:
    one, two = a[seeds[0]], b[seeds[0]]
    titles = one.run.contender.variant.title, two.run.contender.variant.title
    bpb = [float(np.mean([side[s].record["val_bpb"] for s in seeds])) for side in (a, b)]
    params = one.record["params"], two.record["params"]
    less = params[0] - params[1]
    size = (
        f"with {abs(less):,} parameters {'fewer' if less < 0 else 'more'} ({100 * abs(less) / params[1]:.1f}%)"
        if abs(less) > 0.005 * params[1]
        else "at the same number of parameters"
    )
    after = {"time": "in the same training time", "steps": "after the same steps", "params": "at matched size"}[match]
    scores = f"{bpb[0]:.4f} bits per byte against {bpb[1]:.4f}"
    how = f"{after}, {size}" if match != "params" or abs(less) > 0.005 * params[1] else after
    if winner is None:
        return f"On this text {titles[0]} and {titles[1]} are too close to call {how}: {scores}."
    better, more = ("better", "less") if difference > 0 else ("worse", "more")
    share = 100 * abs(difference) / bpb[1]
    return f"On this text {titles[0]} does {better} than {titles[1]} {how}: {scores}, {share:.1f}% {more}."


def _certainty(difference: float, half: float, seeds: int, clear: bool) -> str:
    gap = f"{abs(difference):.4f} ± {half:.4f}"
    if seeds > 1:
        return (
            f"The difference is {gap} over {seeds} seeds (95%), "
            f"{'clear of zero' if clear else 'which takes in zero'}; it speaks for this text, size and length of run."
        )
    return (
        f"This is one seed: the difference is {gap} (95%, over held-out documents only). How far another seed would "
        f"move it is not measured here (about {ONE_SEED_NOISE} is common in runs this short); --seeds 3 would tell."
    )


def _t95(freedom: int) -> float:
    return _T95[freedom - 1] if freedom <= len(_T95) else 2.0
