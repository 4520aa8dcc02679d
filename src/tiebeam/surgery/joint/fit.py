"""Fit the joint tie: choose the row weights on held-out text and the rows to store exactly.

Candidates are compared by their cost on held-out text: the KL of the head, on stored hidden states, plus the cost of
the embedding by its measured sensitivity. No layer is run for a candidate. The one that is chosen is then run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.surgery.joint.calibration import Calibration
from tiebeam.surgery.joint.decomposition import (
    Factors,
    Moments,
    Rows,
    Spectrum,
    equal_energy,
    moments_of,
    row_blocks,
    row_errors,
    spectrum_of,
    square_roots,
    without_rows,
)
from tiebeam.surgery.joint.held_out import HeldOut, Measured
from tiebeam.surgery.joint.refine import ROWS, HeadProblem, refine
from tiebeam.surgery.joint.sensitivity import lookup_sensitivity

if TYPE_CHECKING:
    from tiebeam.decode import Table

Array = NDArray[Any]
Stage = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""

POWERS = (0.75, 0.5)
BALANCES = (1.0, 0.5, 0.25)  # tried in this order while the cost falls
RANKS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
_NEARLY = 1.02  # prefer more even row weights if their cost is at most 2% worse: they generalise to other text
_FEW = 1024  # held-out tokens that candidates are compared on


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of a fit.

    rank, exact_rows     columns of the table; number of rows stored exactly
    power, balance       None: chosen on held-out text; the balance is relative to the measured sensitivity, or to equal
                         energy
    probe                measure the sensitivity; False: embedding and head have equal energy
    ridge                regularisation of the metric C; None: do not use the metric
    predicted, uniform   share of the model's predictions, and of a constant, in the row weights
    passes               of the refinement over the stored hidden states; 0: the closed form stays
    """

    rank: int
    exact_rows: int = 0
    power: float | None = None
    balance: float | None = None
    probe: bool = True
    ridge: float | None = 0.1
    predicted: float = 0.5
    uniform: float = 0.02
    passes: int = 0


@dataclass(frozen=True)
class Fit:
    """The fitted factors, and the loss on held-out text before and after; `after` is None until the model was run."""

    recipe: Recipe
    factors: Factors
    spectrum: Spectrum
    exact: Array  # ids, ascending
    before: Measured
    after: Measured | None
    tried: tuple[tuple[float, float, float], ...]
    """(power, balance, cost) of every candidate."""
    sensitivity: float = 1.0
    """Twice the cost, in nats, of an error of norm 1 in an embedding."""
    refined: tuple[float, float] | None = None
    """The cost on held-out text before and after the refinement."""

    def lines(self, vocab: int, dim: int, after: Measured) -> list[dict[str, Any]]:
        """For ranks around D: KL, agreement and loss, energy kept, parameters saved.

        They are measured at the fitted rank and predicted for the others: KL grows with the discarded energy, the
        disagreement with its root. No predicted loss is below the original's.
        """
        lost, here = max(after.nats - self.before.nats, 0.0), 1 - self.spectrum.kept(self.recipe.rank)
        found = []
        for share in sorted({*RANKS, self.recipe.rank / dim}):
            rank = round(share * dim)
            measured = rank == self.recipe.rank
            ratio = (1 - self.spectrum.kept(rank)) / here if here > 0 else 0.0
            found.append(
                {
                    "rank": rank,
                    "kl": after.kl if measured else after.kl * ratio,
                    "agreement": after.agreement if measured else max(0.0, 1 - (1 - after.agreement) * ratio**0.5),
                    "nats": after.nats if measured else self.before.nats + lost * ratio,
                    "energy": self.spectrum.kept(rank),
                    "saved": saved(vocab, dim, rank, self.recipe.exact_rows),
                    "measured": measured,
                }
            )
        return found


def saved(vocab: int, dim: int, rank: int, exact_rows: int = 0) -> int:
    """Parameters of two matrices minus those of the table, two maps and the exact rows."""
    return 2 * vocab * dim - vocab * rank - 2 * rank * dim - 2 * exact_rows * dim


def fit(
    held_out: HeldOut,
    rows: Rows,
    calibration: Calibration,
    recipe: Recipe,
    progress: Stage = lambda stage, done, total: None,
    confirm: bool = True,
) -> Fit:
    """Fit `recipe` to the matrices [V, D] that `rows` reads. `confirm`: run the fitted model on the held-out text."""
    D, engine = len(calibration.C), held_out.original
    roots = (np.eye(D), np.eye(D)) if recipe.ridge is None else square_roots(calibration.metric(recipe.ridge))
    powers = POWERS if recipe.power is None else (recipe.power,)
    balances = BALANCES if recipe.balance is None else (recipe.balance,)
    most, found = len(balances) + len(powers) - 1, list[tuple[float, Fit]]()
    progress("fitting", 0, most)
    unit: float | None = None

    def candidate(moments: Moments, power: float, balance: float) -> float:
        nonlocal unit
        if unit is None and not recipe.probe:
            unit = equal_energy(moments, roots[0])
        elif unit is None:
            norm = float(np.sqrt(np.trace(moments.embed)))
            stage = _stage(progress, "measuring sensitivity")
            unit = lookup_sensitivity(engine, calibration.runs, norm, calibration.hidden, stage) ** 0.5
        chosen = replace(recipe, power=power, balance=balance)
        fitted = _closed_form(rows, moments, roots, chosen, unit, calibration, held_out)
        found.append((_cost(rows, fitted, held_out) if most > 1 else 0.0, fitted))
        progress("fitting", min(len(found), most - 1), most)
        return found[-1][0]

    def moments_for(power: float) -> Moments:
        return moments_of(rows, calibration.weights(recipe.predicted, recipe.uniform, power), D)

    moments, lowest = moments_for(powers[0]), float("inf")
    for balance in balances:
        cost = candidate(moments, powers[0], balance)
        if cost > lowest:
            break
        lowest = cost
    best = min(found, key=lambda pair: pair[0])[1].recipe.balance
    assert best is not None
    for power in powers[1:]:
        candidate(moments_for(power), power, best)
    progress("fitting", most, most)
    lowest = min(cost for cost, _ in found)
    even = [pair for pair in found if pair[0] <= _NEARLY * max(lowest, 0.0) + 1e-6]
    chosen = min(even, key=lambda pair: (pair[1].recipe.power, pair[0]))[1]
    tried = tuple((fit.recipe.power or 1.0, fit.recipe.balance or 1.0, cost) for cost, fit in found)
    chosen = replace(chosen, tried=tried)
    found.clear()
    if recipe.passes and recipe.rank < 2 * D:
        chosen = _refined(rows, chosen, calibration, held_out, _stage(progress, "refining"))
    if confirm:
        joint_model = engine.with_tables(*tables_of(rows, len(calibration.counts), chosen.factors, chosen.exact))
        chosen = replace(chosen, after=held_out.measure(joint_model, _stage(progress, "running the fitted model")))
    return chosen


def _stage(progress: Stage, name: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(name, done, total)


def _closed_form(
    rows: Rows, moments: Moments, roots: tuple[Array, Array], recipe: Recipe, unit: float, calibration: Calibration,
    held_out: HeldOut,
) -> Fit:  # fmt: skip
    balance = unit * (recipe.balance or 1.0)
    spectrum = spectrum_of(moments, roots, balance)
    exact = np.zeros(0, np.int64)
    if recipe.exact_rows and recipe.rank < len(spectrum.values):
        importance = calibration.weights(recipe.predicted, recipe.uniform)
        errors = row_errors(rows, spectrum, recipe.rank, importance)
        exact = np.sort(np.argsort(errors)[::-1][: recipe.exact_rows]).astype(np.int64)
        spectrum = spectrum_of(without_rows(moments, rows, exact), roots, balance)
    return Fit(recipe, spectrum.factors(recipe.rank), spectrum, exact, held_out.before, None, (), unit**2)


def _cost(rows: Rows, fitted: Fit, held_out: HeldOut) -> float:
    """Estimated KL in nats per token on the beginning of the held-out runs, without running a layer."""
    few = held_out.first(_FEW)
    embed, head = tables_of(rows, held_out.original.vocab, fitted.factors, fitted.exact)
    ids = np.concatenate([np.asarray(run) for run in few.runs])
    wrong = held_out.original.embed.lookup(ids) - embed.lookup(ids)
    read = 0.5 * fitted.sensitivity * float(np.einsum("td,td->t", wrong, wrong, dtype=np.float64).mean())
    return few.measure(held_out.original.with_tables(embed, head), layers=False).kl + read


def _refined(
    rows: Rows, fitted: Fit, calibration: Calibration, held_out: HeldOut, progress: Callable[[int, int], None]
) -> Fit:
    """The fit with the rows of its most likely tokens refined."""
    factors, V, D = fitted.factors, len(calibration.counts), len(calibration.C)
    ids = np.sort(np.argsort(calibration.weights(uniform=0.0))[::-1][:ROWS])
    table = np.empty((V, factors.rank), np.float32)
    E, W = (np.empty((len(ids), D), np.float32) for _ in range(2))
    for start, stop in row_blocks(V, D):
        e, w = rows(start, stop)
        table[start:stop] = factors.table(e, w)
        low, high = np.searchsorted(ids, (start, stop))
        E[low:high], W[low:high] = e[ids[low:high] - start], w[ids[low:high] - start]
    problem = HeadProblem(
        E, W, fitted.sensitivity * calibration.read[ids], factors.embed_map, factors.head_map,
        np.isin(ids, fitted.exact), held_out.original.spec.scales,
    )  # fmt: skip
    few = held_out.first(_FEW).states
    table[ids], before, after = refine(problem, table[ids], calibration.hidden, few, fitted.recipe.passes, progress)
    if after >= before:
        return replace(fitted, refined=(before, before))
    return replace(fitted, factors=replace(factors, trained=table), refined=(before, after))


def tables_of(rows: Rows, vocab: int, factors: Factors, exact: Array) -> tuple[Table, Table]:
    """The embedding and head that the factors give, for the decoder."""
    from tiebeam.decode import Table

    table = factors.trained
    if table is None:
        table = np.empty((vocab, factors.rank), np.float32)
        for start, stop in row_blocks(vocab, len(factors.from_embed)):
            table[start:stop] = factors.rows(rows, start, stop)
    kept: tuple[Array | None, Array | None] = (None, None)
    if len(exact):
        pairs = [rows(int(i), int(i) + 1) for i in exact]
        kept = np.concatenate([e for e, _ in pairs]), np.concatenate([w for _, w in pairs])
    ids = exact if len(exact) else None
    return Table(table, factors.embed_map, ids, kept[0]), Table(table, factors.head_map, ids, kept[1])
