"""A short sweep of the embedding and head learning rates of every variant and width.

A comparison is worthless if one side's learning rate is off. Every candidate trains for a fraction of the run with its
full schedule; the lowest held-out loss wins. The grid starts with half the default and the default and grows by factors
of two on the side of the best, until the best lies inside. An untied pair has two rates, which are swept one after the
other. The sensitivity is what half and double the best rate cost; a best rate that stays at the edge is a warning.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tiebeam.compare.train_runs import Interrupted, Run, initial_model
from tiebeam.train import Distribution, LearningRates
from tiebeam.train.loop import training
from tiebeam.train.result import Diverged

FACTORS = (0.5, 1.0)
"""Of the default rate, to begin with."""
MOST = 7
"""Candidates of one rate."""
Key = tuple[str, int, int]  # variant, width, vocabulary


@dataclass(frozen=True, slots=True)
class SweptRate:
    """One learning rate of one variant and width: the candidates, and the best of them."""

    variant: str
    width: int
    vocab: int
    role: str
    """The field of LearningRates: "table" (tied), "embed" or "head" (untied)."""
    rates: tuple[float, ...]
    bpb: tuple[float | None, ...]
    """Held-out bits per byte of each candidate; None if it diverged."""
    best: float
    at_edge: bool
    half_costs: float | None
    """Bits per byte lost with half the best rate; None if it was not tried."""
    double_costs: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def sweep(
    runs: Sequence[Run], steps: int, *, factors: Sequence[float] = FACTORS, most: int = MOST,
    progress: Callable[[str, int, int], None] | None = None, interrupted: Callable[[], bool] = lambda: False,
    swept: Callable[[Sequence[SweptRate]], None] | None = None, distribution: Distribution | None = None,
) -> list[SweptRate]:  # fmt: skip
    """Sweep the rates of every run (one seed) in runs of `steps` steps; `swept` receives those of each run."""
    found: list[SweptRate] = []
    rates_in_all = sum(len(roles_of(run)) for run in runs)
    for run in runs:
        best, mine = run.settings.learning_rates, list[SweptRate]()
        for role in roles_of(run):
            default = getattr(run.settings.learning_rates, role)
            losses = dict[float, float | None]()
            if mine and 1.0 in factors:  # the best run of the rate before had the default of this one
                losses[1.0] = mine[-1].bpb[mine[-1].rates.index(mine[-1].best)]
            if progress:
                progress(f"learning rates, width {run.width}", len(found) + len(mine), rates_in_all)
            while (factor := next_factor(losses, factors, most)) is not None:
                losses[factor] = _loss(run, _changed(best, role, default * factor), steps, interrupted, distribution)
            ordered = sorted(losses)
            mine.append(_swept(run, role, tuple(default * f for f in ordered), tuple(losses[f] for f in ordered)))
            best = _changed(best, role, mine[-1].best)
        found += mine
        if swept:
            swept(mine)
    return found


def next_factor(losses: Mapping[float, float | None], first: Sequence[float], most: int) -> float | None:
    """The next candidate: one of `first`, then beyond the edge where the best is; None if the best lies inside.

    >>> next_factor({0.5: 2.1, 1.0: 2.0, 2.0: 1.9}, (0.5, 1.0, 2.0), most=7)
    4.0
    """
    for factor in first:
        if factor not in losses:
            return factor
    best = min(losses, key=lambda factor: (_comparable(losses[factor]), factor))  # all diverged: the smallest
    if len(losses) >= most or best not in (min(losses), max(losses)):
        return None
    return best * 2 if best == max(losses) else best / 2


def roles_of(run: Run) -> tuple[str, ...]:
    """The vocabulary learning rates that a run uses. A run that unties later keeps the tied rate for both matrices."""
    return ("embed", "head") if run.settings.tie is False else ("table",)


def chosen_rates(swept: Sequence[SweptRate], runs: Sequence[Run]) -> Mapping[Key, LearningRates]:
    """The learning rates of every run after the sweep."""
    rates = {(run.variant, run.width, run.vocab): run.settings.learning_rates for run in runs}
    for one in swept:
        key = (one.variant, one.width, one.vocab)
        if key in rates:
            rates[key] = _changed(rates[key], one.role, one.best)
    return rates


def stored_sweep(document: Any) -> list[SweptRate]:
    """Read what `to_dict` gave; an empty list if it is something else."""
    try:
        return [SweptRate(**{**row, "rates": tuple(row["rates"]), "bpb": tuple(row["bpb"])}) for row in document]
    except (TypeError, KeyError):
        return []


def sweep_document(swept: Sequence[SweptRate], steps: int) -> dict[str, Any]:
    """The `sweep` of report.json."""
    return {"steps": steps, "rows": [one.to_dict() for one in swept], "notes": sweep_notes(swept)}


def best_between(one: SweptRate) -> float:
    """The best rate between the candidates: the minimum of a parabola through the best and its neighbours.

    In the logarithm of the rate. At the edge of the grid, or beside a run that diverged, the best candidate itself.

    >>> best_between(SweptRate("tied", 64, 9, "table", (0.1, 0.2, 0.4), (3.0, 2.0, 3.0), 0.2, False, 1.0, 1.0))
    0.2
    """
    if one.at_edge or one.half_costs is None or one.double_costs is None or one.half_costs + one.double_costs == 0:
        return one.best
    return one.best * 2 ** ((one.half_costs - one.double_costs) / (one.half_costs + one.double_costs) / 2)


def exponent(swept: Sequence[SweptRate]) -> float | None:
    """p of best rate ~ width^-p over the widths of one variant and role; None for fewer than three widths.

    >>> rates = [SweptRate("tied", w, 9, "table", (), (), 1 / w, False, None, None) for w in (64, 128, 256)]
    >>> round(exponent(rates), 6)
    1.0
    """
    if len({one.width for one in swept}) < 3:
        return None
    slope = np.polyfit([math.log(one.width) for one in swept], [math.log(best_between(one)) for one in swept], 1)[0]
    return -float(slope)


def sweep_notes(swept: Sequence[SweptRate]) -> list[str]:
    """Warnings about best rates at the edge, and how the best rate follows the width."""
    notes = [
        f"{one.variant}, width {one.width}: the best {one.role} learning rate {one.best:g} is at the edge of its grid "
        f"({one.rates[0]:g} to {one.rates[-1]:g}); the true best may lie beyond"
        for one in swept
        if one.at_edge
    ]
    for variant, role in dict.fromkeys((one.variant, one.role) for one in swept):
        mine = [one for one in swept if (one.variant, one.role) == (variant, role)]
        power = exponent(mine)
        if power is not None:
            follows = "1/width" if power > 0.75 else "1/sqrt(width)" if power > 0.25 else "neither"
            notes.append(f"{variant}: the best {role} learning rate goes as width^{-power:.2f} ({follows})")
    return notes


def _changed(rates: LearningRates, role: str, rate: float) -> LearningRates:
    change: dict[str, Any] = {role: rate}
    return replace(rates, **change)


def _loss(
    run: Run, rates: LearningRates, steps: int, interrupted: Callable[[], bool], distribution: Distribution | None
) -> float | None:
    """Held-out bits per byte after a short run with these rates."""
    settings = replace(run.settings, rates=rates, steps=steps, minutes=None, validate_every=1.0)
    with tempfile.TemporaryDirectory() as folder:
        out, model = Path(folder) / "run", initial_model(run.settings, run.vocab)
        try:
            with training(settings, run.corpus, out, model=model, distribution=distribution) as one:
                if one.advance(steps, interrupted):
                    raise Interrupted(f"the sweep stopped in {run.name}")
                bpb = one.check().bpb
                return bpb if math.isfinite(bpb) else None
        except Diverged:
            return None


def _comparable(loss: float | None) -> float:
    return math.inf if loss is None else loss


def _swept(run: Run, role: str, rates: tuple[float, ...], losses: tuple[float | None, ...]) -> SweptRate:
    comparable = [_comparable(loss) for loss in losses]
    at = int(np.argmin(comparable))

    def cost(index: int) -> float | None:
        inside = 0 <= index < len(losses) and losses[index] is not None
        return comparable[index] - comparable[at] if inside else None

    return SweptRate(
        run.variant, run.width, run.vocab, role, rates, losses, rates[at], at in (0, len(rates) - 1),
        cost(at - 1), cost(at + 1),
    )  # fmt: skip
