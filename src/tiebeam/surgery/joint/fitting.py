"""Choose the balance of the two ends on text that nothing was fitted to, pick the rows to keep exactly, measure.

Candidates are judged by their KL from the original: less noisy than the loss itself, and never flattered by luck.
The trunk runs between the tables that a candidate gives (`Decoder.with_ends`), so every number here is what the
written model will do, but for the rounding of its table to the stored type.
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
    moments_of,
    row_blocks,
    row_errors,
    spectrum_of,
    square_roots,
    without_rows,
)
from tiebeam.surgery.joint.trial import HeldOut, Measured

if TYPE_CHECKING:
    from tiebeam.decode import Table

Array = NDArray[Any]
BALANCES = (0.25, 0.5, 1.0, 2.0, 4.0)
RANKS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to fit. `balance` None: chosen on held-out text. `ridge` None: the head's rows are measured plainly."""

    rank: int
    balance: float | None = None
    ridge: float | None = 0.02
    uniform: float = 0.05
    predicted: float = 0.45
    exact_rows: int = 0


@dataclass(frozen=True)
class Fit:
    """What was fitted, and what the model did and does on held-out text."""

    recipe: Recipe
    factors: Factors
    spectrum: Spectrum
    exact: Array  # ids, ascending
    before: Measured
    after: Measured
    tried: tuple[tuple[float, float], ...]
    """(balance, KL) of every balance that was measured."""

    def predicted_loss(self, rank: int) -> float:
        """The loss at another rank: the error energy scales what was measured at this one."""
        here = 1 - self.spectrum.kept(self.recipe.rank)
        there = 1 - self.spectrum.kept(rank)
        lost = self.after.nats - self.before.nats
        return self.before.nats if here <= 0 else self.before.nats + lost * there / here

    def lines(self, vocab: int, dim: int) -> list[dict[str, Any]]:
        """The spectrum as a table: for ranks around D, energy kept, parameters saved, predicted loss."""
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
    """Parameters of two matrices less those of a table, two maps and the exact rows."""
    return 2 * vocab * dim - vocab * rank - 2 * rank * dim - 2 * exact_rows * dim


def fit(
    held_out: HeldOut,
    rows: Rows,
    calibration: Calibration,
    recipe: Recipe,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Fit:
    """Fit `recipe` to the pair behind `rows`, [V, D] each as `calibration` has them."""
    D = len(calibration.C)
    moments = moments_of(rows, calibration.weights(recipe.uniform, recipe.predicted), D)
    roots = (np.eye(D), np.eye(D)) if recipe.ridge is None else square_roots(calibration.metric(recipe.ridge))
    balances = BALANCES if recipe.balance is None else (recipe.balance,)
    best: Fit | None = None
    tried = []
    for done, balance in enumerate(balances):
        found = _fit(held_out, rows, moments, roots, replace(recipe, balance=balance))
        tried.append((balance, found.after.kl))
        best = found if best is None or found.after.kl < best.after.kl else best
        progress(done + 1, len(balances))
    assert best is not None
    return replace(best, tried=tuple(tried))


def _fit(held_out: HeldOut, rows: Rows, moments: Moments, roots: tuple[Array, Array], recipe: Recipe) -> Fit:
    assert recipe.balance is not None
    spectrum = spectrum_of(moments, roots, recipe.balance)
    exact = np.zeros(0, np.int64)
    if recipe.exact_rows and recipe.rank < len(spectrum.values):
        errors = row_errors(rows, spectrum, recipe.rank, moments.weights)
        exact = np.sort(np.argsort(errors)[::-1][: recipe.exact_rows]).astype(np.int64)
        spectrum = spectrum_of(without_rows(moments, rows, exact), roots, recipe.balance)
    factors = spectrum.factors(recipe.rank)
    joined = held_out.original.with_ends(*tables_of(rows, len(moments.weights), factors, exact))
    return Fit(recipe, factors, spectrum, exact, held_out.before, held_out.measure(joined), ())


def tables_of(rows: Rows, vocab: int, factors: Factors, exact: Array) -> tuple[Table, Table]:
    """The two ends that the factors make, for the decoder."""
    from tiebeam.decode import Table

    shared = np.empty((vocab, factors.rank), np.float32)
    for start, stop in row_blocks(vocab, len(factors.from_embed)):
        shared[start:stop] = factors.rows(rows, start, stop)
    kept: tuple[Array | None, Array | None] = (None, None)
    if len(exact):
        pairs = [rows(int(i), int(i) + 1) for i in exact]
        kept = np.concatenate([e for e, _ in pairs]), np.concatenate([w for _, w in pairs])
    ids = exact if len(exact) else None
    return Table(shared, factors.embed_map, ids, kept[0]), Table(shared, factors.head_map, ids, kept[1])
