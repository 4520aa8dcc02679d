"""Fit the joint tie: choose the rows whose embedding is stored exactly, and the balance of embedding and head.

Candidates are compared by their cost on held-out text: the KL of the head, on stored hidden states, plus the cost of
the embedding by its measured sensitivity. No layer is run for a candidate. The one that is chosen is then run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam._memory import trim_memory
from tiebeam.surgery.joint.calibration import Calibration
from tiebeam.surgery.joint.decomposition import (
    Factors,
    Moments,
    Rows,
    equal_energy,
    kept,
    moments_of,
    row_blocks,
    spectrum_of,
    square_roots,
)
from tiebeam.surgery.joint.held_out import HeldOut, Measured
from tiebeam.surgery.joint.sensitivity import embedding_sensitivity

if TYPE_CHECKING:
    from tiebeam.decode import Table

Array = NDArray[Any]
Stage = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""

BALANCES = (0.75, 0.56)  # relative to the measured sensitivity: the head meets states that it was not fitted to
EXACT_SHARE = 0.3  # of the embeddings are stored exactly, unless another number is asked for
RANKS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
_FEW = 1024  # held-out tokens that candidates are compared on


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of a fit.

    rank                 columns of the table
    exact_rows           number of embeddings that are stored exactly; None: 30% of the rows, none at rank 2D
    balance              None: chosen on held-out text; relative to the measured sensitivity, or to equal energy
    probe                measure the sensitivity; False: embedding and head have equal energy
    ridge                regularisation of the metric C; None: do not use the metric
    power                of the row weights; below 1 they are more even, which suits other text better
    predicted, uniform   share of the model's predictions, and of a constant, in the row weights
    """

    rank: int
    exact_rows: int | None = None
    balance: float | None = None
    probe: bool = True
    ridge: float | None = 0.1
    power: float = 0.75
    predicted: float = 0.5
    uniform: float = 0.02


@dataclass(frozen=True)
class Fit:
    """The fitted factors, and the loss on held-out text before and after; `after` is None until the model was run."""

    recipe: Recipe
    factors: Factors
    energies: Array  # [2D], largest first: the table keeps the first `rank` of them
    before: Measured
    after: Measured | None
    tried: tuple[tuple[float, float], ...]
    """(balance, cost) of every candidate."""
    sensitivity: float = 1.0
    """Twice the cost, in nats, of an error of norm 1 in an embedding."""

    def lines(self, vocab: int, dim: int, after: Measured) -> list[dict[str, Any]]:
        """For ranks around D: KL, agreement and loss, energy kept, parameters saved.

        They are measured at the fitted rank and predicted for the others: KL grows with the discarded energy, the
        disagreement with its root. No predicted loss is below the original's.
        """
        lost, here = max(after.nats - self.before.nats, 0.0), 1 - kept(self.energies, self.recipe.rank)
        found = []
        for share in sorted({*RANKS, self.recipe.rank / dim}):
            rank = round(share * dim)
            measured = rank == self.recipe.rank
            ratio = (1 - kept(self.energies, rank)) / here if here > 0 else 0.0
            found.append(
                {
                    "rank": rank,
                    "kl": after.kl if measured else after.kl * ratio,
                    "agreement": after.agreement if measured else max(0.0, 1 - (1 - after.agreement) * ratio**0.5),
                    "nats": after.nats if measured else self.before.nats + lost * ratio,
                    "energy": kept(self.energies, rank),
                    "saved": saved(vocab, dim, rank, len(self.factors.exact) if rank < 2 * dim else 0),
                    "measured": measured,
                }
            )
        return found


def saved(vocab: int, dim: int, rank: int, exact_rows: int = 0) -> int:
    """Parameters of two matrices minus those of the table, two maps and the exact embeddings with their ids."""
    return 2 * vocab * dim - vocab * rank - 2 * rank * dim - exact_rows * (dim + 1)


def fit(
    held_out: HeldOut,
    rows: Rows,
    calibration: Calibration,
    recipe: Recipe,
    progress: Stage = lambda stage, done, total: None,
    confirm: bool = True,
) -> Fit:
    """Fit `recipe` to the matrices [V, D] that `rows` reads. `confirm`: run the fitted model on the held-out text."""
    problem = _Problem(held_out, rows, calibration, recipe)
    balances = BALANCES if recipe.balance is None else (recipe.balance,)
    most = len(balances) + recipe.probe
    progress("fitting", 0, most)
    unit = equal_energy(problem.moments, problem.roots[0])
    sensitivity = unit**2
    if recipe.probe and recipe.rank < 2 * problem.dim:
        first = problem.closed_form(unit, 1.0, sensitivity)
        progress("fitting", 1, most)
        tables = tables_of(rows, problem.vocab, first.factors, held_out.original.embed)
        stage = _stage(progress, "measuring the embedding's sensitivity")
        sensitivity = embedding_sensitivity(held_out, tables[0], stage)
        unit = sensitivity**0.5
        del first, tables
        trim_memory()
    tried: list[tuple[float, float]] = []
    for balance in balances:
        candidate = problem.closed_form(unit, balance, sensitivity)
        tried.append((balance, problem.cost(candidate) if len(balances) > 1 else 0.0))
        if balance != balances[-1]:
            del candidate  # it holds five matrices [D, D]; solving again takes seconds, and the peak of memory is here
        trim_memory()
        progress("fitting", len(tried) + recipe.probe, most)
    best = min(tried, key=lambda pair: pair[1])[0]
    if best != balances[-1]:
        del candidate
        candidate = problem.closed_form(unit, best, sensitivity)
    chosen = replace(candidate, tried=tuple(tried))
    if confirm:
        joint_model = held_out.original.with_tables(
            *tables_of(rows, problem.vocab, chosen.factors, held_out.original.embed)
        )
        chosen = replace(chosen, after=held_out.measure(joint_model, _stage(progress, "running the fitted model")))
    return chosen


class _Problem:
    """What every candidate shares: the exact rows, the weighted sums over the others, and the metric."""

    def __init__(self, held_out: HeldOut, rows: Rows, calibration: Calibration, recipe: Recipe) -> None:
        self.held_out, self.rows, self.recipe = held_out, rows, recipe
        self.dim, self.vocab = len(calibration.C), len(calibration.counts)
        number = round(EXACT_SHARE * self.vocab) if recipe.exact_rows is None else recipe.exact_rows
        if recipe.rank >= 2 * self.dim:
            number = 0  # the table is exact anyway
        importance = calibration.weights(recipe.predicted, recipe.uniform)
        self.exact = np.sort(np.argsort(-importance, kind="stable")[:number]).astype(np.int64)
        weights = calibration.weights(recipe.predicted, recipe.uniform, recipe.power)
        weights[self.exact] = 0.0
        weights /= max(weights.sum(), 1e-30)
        self.moments: Moments = moments_of(rows, weights, self.dim)
        plain = np.eye(self.dim)
        self.roots = (plain, plain) if recipe.ridge is None else square_roots(calibration.metric(recipe.ridge))

    def closed_form(self, unit: float, balance: float, sensitivity: float) -> Fit:
        spectrum = spectrum_of(self.moments, self.roots, unit * balance)
        factors = spectrum.factors(self.recipe.rank, self.exact)
        recipe = replace(self.recipe, balance=balance, exact_rows=len(self.exact))
        return Fit(recipe, factors, spectrum.values, self.held_out.before, None, (), sensitivity)

    def cost(self, fitted: Fit) -> float:
        """Estimated KL in nats per token on the beginning of the held-out runs, without running a layer."""
        few, original = self.held_out.first(_FEW), self.held_out.original
        embed, head = tables_of(self.rows, self.vocab, fitted.factors, original.embed)
        ids = np.concatenate([np.asarray(run) for run in few.runs])
        wrong = original.embed.lookup(ids) - embed.lookup(ids)
        read = 0.5 * fitted.sensitivity * float(np.einsum("td,td->t", wrong, wrong, dtype=np.float64).mean())
        return few.measure(original.with_tables(embed, head), layers=False).kl + read


def _stage(progress: Stage, name: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(name, done, total)


def tables_of(rows: Rows, vocab: int, factors: Factors, original: Table | None = None) -> tuple[Table, Table]:
    """The embedding and head that the factors give, for the decoder. Exact embeddings are looked up in `original`, the
    embedding of the source; without it they are copied."""
    from tiebeam.decode import Table

    dim = factors.embed_map.shape[1]
    table = factors.trained
    if table is None:
        table = np.empty((vocab, factors.rank), np.float32)
        for start, stop in row_blocks(vocab, dim):
            table[start:stop] = factors.rows(rows, start, stop)
    head, ids = Table(table, factors.head_map), factors.exact
    if not len(ids):
        return Table(table, factors.embed_map), head
    kept = np.concatenate(list(factors.exact_embed(rows, vocab, dim))) if original is None else _Looked(original, ids)
    return Table(table, factors.embed_map, ids, kept), head


@dataclass(frozen=True)
class _Looked:
    """Rows of a table that are looked up when they are needed."""

    table: Table
    ids: Array

    def __getitem__(self, at: Array) -> Array:  # [T] -> [T, D]
        return self.table.lookup(self.ids[at])
