"""The verdict of a comparison: which variant has the lower held-out loss, and how certain that is.

`compute_verdict` is the only place where the verdict is put into words; the terminal, the report and the studio show
its `sentences`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebeam.compare.held_out_losses import mean_and_standard_error, paired_standard_error

if TYPE_CHECKING:
    from tiebeam.compare.run_metrics import RunMetrics
    from tiebeam.corpus import Corpus

SEED_NOISE = 0.005
"""Bits per byte. Runs of a few minutes that differ only in their seed commonly differ by about this much."""
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # two-sided, by degrees of freedom
_SAME_SIZE = 0.005  # parameter counts closer than this are called equal


@dataclass(frozen=True, slots=True)
class Verdict:
    """`difference` is bits per byte of the second variant minus the first: positive means the first is better."""

    first: str
    second: str
    difference: float | None
    half_width: float | None
    """Of the 95% confidence interval."""
    seeds: int
    winner: str | None
    sentences: tuple[str, str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compute_verdict(runs: Sequence[RunMetrics], corpus: Corpus, match: str) -> Verdict:
    """Compare tied with untied if both ran, else the first two variants.

    With several seeds the interval comes from the differences per seed. With one seed it comes from the held-out
    documents alone, so a difference must also exceed SEED_NOISE to have a winner.
    """
    by_variant: dict[str, dict[int, RunMetrics]] = {}
    for metrics in runs:
        by_variant.setdefault(metrics.run.config.variant.name, {})[metrics.run.seed] = metrics
    names = list(by_variant)
    if len(names) < 2:
        mine = list(by_variant[names[0]].values())
        mean, _ = mean_and_standard_error([metrics.record["val_bpb"] for metrics in mine])
        return Verdict(names[0], "", None, None, len(mine), None, (
            f"Only {mine[0].run.config.variant.title} was trained: {mean:.4f} bits per byte.",
            "There is no second variant to compare with; use variants tied,untied.",
        ))  # fmt: skip
    first, second = ("tied", "untied") if {"tied", "untied"} <= set(names) else (names[0], names[1])
    a, b = by_variant[first], by_variant[second]
    seeds = sorted(set(a) & set(b))
    difference, error = mean_and_standard_error([b[s].record["val_bpb"] - a[s].record["val_bpb"] for s in seeds])
    if error is None:
        half = 1.96 * paired_standard_error(b[seeds[0]].losses, a[seeds[0]].losses, corpus)
        half = half if np.isfinite(half) else SEED_NOISE
        clear = abs(difference) > max(half, SEED_NOISE)
    else:
        half = _t95(len(seeds) - 1) * error
        clear = abs(difference) > half
    winner = (first if difference > 0 else second) if clear else None
    pair = [a[s] for s in seeds], [b[s] for s in seeds]
    return Verdict(
        first, second, difference, half, len(seeds), winner,
        (_outcome(*pair, winner, match), _certainty(*pair, difference, half)),
    )  # fmt: skip


def _outcome(a: Sequence[RunMetrics], b: Sequence[RunMetrics], winner: str | None, match: str) -> str:
    """'No clear difference after 1 min each (tied 128 steps, untied 86): 2.1034 and 2.1049 bits per byte. Tied ...'"""
    titles = [side[0].run.config.variant.title for side in (a, b)]
    bpb = [_mean(side, "val_bpb") for side in (a, b)]
    params = [side[0].record["params"] for side in (a, b)]
    fewer = params[1] - params[0]
    if abs(fewer) <= _SAME_SIZE * params[1]:
        size = "Both have the same number of parameters."
        how = f"at matched parameters {_length(a, b)}" if match == "params" else _length(a, b)
    else:
        more_or_fewer = "fewer" if fewer > 0 else "more"
        size = f"{titles[0].capitalize()} has {abs(fewer):,} {more_or_fewer} parameters "
        size += f"({100 * abs(fewer) / params[1]:.1f}%)."
        how = _length(a, b)
    if winner is None:
        return f"No clear difference {how}: {bpb[0]:.4f} and {bpb[1]:.4f} bits per byte. {size}"
    best = 0 if bpb[0] < bpb[1] else 1
    lower = 100 * (bpb[1 - best] - bpb[best]) / bpb[1 - best]
    return (
        f"{titles[best].capitalize()} is better than {titles[1 - best]} {how}: "
        f"{bpb[best]:.4f} vs {bpb[1 - best]:.4f} bits per byte, {lower:.1f}% lower. {size}"
    )


def _length(a: Sequence[RunMetrics], b: Sequence[RunMetrics]) -> str:
    """'after 500 steps each', or with equal time 'after 1 min each (tied 128 steps, untied 86)'."""
    steps = [round(_mean(side, "steps")) for side in (a, b)]
    minutes = a[0].record["settings"]["minutes"]
    if minutes is None or steps[0] == steps[1]:
        return f"after {steps[0]:,} steps each"
    first, second = (side[0].run.config.variant.title for side in (a, b))
    return f"after {minutes:g} min each ({first} {steps[0]:,} steps, {second} {steps[1]:,})"


def _certainty(a: Sequence[RunMetrics], b: Sequence[RunMetrics], difference: float, half: float) -> str:
    low, high = difference - half, difference + half
    zero = "includes 0" if low <= 0 <= high else "excludes 0"
    first, second = (side[0].run.config.variant.title for side in (a, b))
    gap = f"{second.capitalize()} minus {first}: {difference:.4f} bits per byte (95% CI {low:.4f} to {high:.4f}, {zero}"
    if len(a) > 1:
        return f"{gap}; {len(a)} seeds). This holds for this text, model size and training length."
    return (
        f"{gap}; one seed, over held-out documents). Variation between seeds is not measured "
        f"(about {SEED_NOISE} is common in runs this short); run 3 seeds to measure it."
    )


def _mean(side: Sequence[RunMetrics], key: str) -> float:
    return float(np.mean([metrics.record[key] for metrics in side]))


def _t95(freedom: int) -> float:
    return _T95[freedom - 1] if freedom <= len(_T95) else 2.0
