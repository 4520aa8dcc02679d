"""Fit the joint tie: choose row weights and embedding/head balance on held-out text, and the rows to store exactly.

Candidates are compared by their KL from the original model, which is less noisy than the loss. Each is measured by
running the model with the candidate's tables (`Decoder.with_tables`), so the numbers are those of the written model
except for the rounding of its table to the stored dtype.
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
from tiebeam.surgery.joint.sensitivity import lookup_sensitivity

if TYPE_CHECKING:
    from tiebeam.decode import Table

Array = NDArray[Any]
POWERS = (0.5, 0.75, 1.0)
BALANCES = (0.7, 1.0, 1.4)
RANKS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
_NEARLY = 1.02  # prefer more even row weights if their KL is at most 2% worse: they generalise to other text


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of a fit.

    rank, exact_rows     columns of the table; number of rows stored exactly
    power, balance       None: chosen on held-out text
    probe                balance is relative to the measured sensitivity; False: relative to equal energy
    ridge                regularisation of the metric C; None: do not use the metric
    predicted, uniform   share of the model's predictions, and of a constant, in the row weights
    """

    rank: int
    exact_rows: int = 0
    power: float | None = None
    balance: float | None = None
    probe: bool = True
    ridge: float | None = 0.1
    predicted: float = 0.5
    uniform: float = 0.02


@dataclass(frozen=True)
class Fit:
    """The fitted factors, and the loss on held-out text before and after."""

    recipe: Recipe
    factors: Factors
    spectrum: Spectrum
    exact: Array  # ids, ascending
    before: Measured
    after: Measured
    tried: tuple[tuple[float, float, float], ...]
    """(power, balance, KL) of every candidate."""

    def predicted_loss(self, rank: int) -> float:
        """The loss at another rank, scaled from the measured one by the discarded energy."""
        here = 1 - self.spectrum.kept(self.recipe.rank)
        there = 1 - self.spectrum.kept(rank)
        lost = self.after.nats - self.before.nats
        return self.before.nats if here <= 0 else self.before.nats + lost * there / here

    def lines(self, vocab: int, dim: int) -> list[dict[str, Any]]:
        """For ranks around D: energy kept, parameters saved, predicted loss."""
        return [
            {
                "rank": (rank := round(share * dim)),
                "energy": self.spectrum.kept(rank),
                "saved": saved(vocab, dim, rank, self.recipe.exact_rows),
                "nats": self.predicted_loss(rank),
            }
            for share in sorted({*RANKS, self.recipe.rank / dim})
        ]


def saved(vocab: int, dim: int, rank: int, exact_rows: int = 0) -> int:
    """Parameters of two matrices minus those of the table, two maps and the exact rows."""
    return 2 * vocab * dim - vocab * rank - 2 * rank * dim - 2 * exact_rows * dim


def fit(
    held_out: HeldOut,
    rows: Rows,
    calibration: Calibration,
    recipe: Recipe,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Fit:
    """Fit `recipe` to the matrices [V, D] that `rows` reads: choose the power of the row weights, then the balance."""
    D = len(calibration.C)
    roots = (np.eye(D), np.eye(D)) if recipe.ridge is None else square_roots(calibration.metric(recipe.ridge))
    importance = calibration.weights(recipe.predicted, recipe.uniform)
    sensitivity: float | None = None
    powers = POWERS if recipe.power is None else (recipe.power,)
    others = [b for b in BALANCES if b != 1.0] if recipe.balance is None else []
    found: list[Fit] = []
    sums: dict[float, Moments] = {}

    def candidate(power: float, balance: float) -> Fit:
        nonlocal sensitivity
        if power not in sums:
            sums[power] = moments_of(rows, calibration.weights(recipe.predicted, recipe.uniform, power), D)
        if recipe.probe and sensitivity is None:
            length = float(np.sqrt(np.trace(sums[power].embed)))
            sensitivity = lookup_sensitivity(held_out.original, calibration.runs, length)
        unit = equal_energy(sums[power], roots[0]) if sensitivity is None else float(np.sqrt(sensitivity))
        chosen = replace(recipe, power=power, balance=balance)
        return _fit(held_out, rows, sums[power], roots, chosen, balance * unit, importance)

    def measure(power: float, balance: float) -> None:
        found.append(candidate(power, balance))
        progress(len(found), len(powers) + len(others))

    for power in powers:
        measure(power, 1.0 if recipe.balance is None else recipe.balance)
    best = min(fitted.after.kl for fitted in found)
    even = next(fitted for fitted in found if fitted.after.kl <= _NEARLY * max(best, 0.0) + 1e-6)
    for balance in others:
        assert even.recipe.power is not None
        measure(even.recipe.power, balance)
    chosen = min([even, *found[len(powers) :]], key=lambda fitted: fitted.after.kl)
    tried = tuple((f.recipe.power or 1.0, f.recipe.balance or 1.0, f.after.kl) for f in found)
    return replace(chosen, tried=tried)


def _fit(
    held_out: HeldOut,
    rows: Rows,
    moments: Moments,
    roots: tuple[Array, Array],
    recipe: Recipe,
    balance: float,
    importance: Array,
) -> Fit:
    spectrum = spectrum_of(moments, roots, balance)
    exact = np.zeros(0, np.int64)
    if recipe.exact_rows and recipe.rank < len(spectrum.values):
        errors = row_errors(rows, spectrum, recipe.rank, importance)
        exact = np.sort(np.argsort(errors)[::-1][: recipe.exact_rows]).astype(np.int64)
        spectrum = spectrum_of(without_rows(moments, rows, exact), roots, balance)
    factors = spectrum.factors(recipe.rank)
    joint_model = held_out.original.with_tables(*tables_of(rows, len(moments.weights), factors, exact))
    return Fit(recipe, factors, spectrum, exact, held_out.before, held_out.measure(joint_model), ())


def tables_of(rows: Rows, vocab: int, factors: Factors, exact: Array) -> tuple[Table, Table]:
    """The embedding and head that the factors give, for the decoder."""
    from tiebeam.decode import Table

    table = np.empty((vocab, factors.rank), np.float32)
    for start, stop in row_blocks(vocab, len(factors.from_embed)):
        table[start:stop] = factors.rows(rows, start, stop)
    kept: tuple[Array | None, Array | None] = (None, None)
    if len(exact):
        pairs = [rows(int(i), int(i) + 1) for i in exact]
        kept = np.concatenate([e for e, _ in pairs]), np.concatenate([w for _, w in pairs])
    ids = exact if len(exact) else None
    return Table(table, factors.embed_map, ids, kept[0]), Table(table, factors.head_map, ids, kept[1])
