"""What every precision costs on this model and this text: for the lookup alone, for the head alone, and for both.

The text is split: hidden states of one part give the second moment for the error compensation, the other part is
measured. A change of the head needs only stored hidden states, so one pass over the layers serves all heads
(head_cost.py). A change of the embedding changes every layer, so it needs a pass of its own; those run on half of
the measured text. Only the rows that the text looks up are rounded for them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.errors import BadRequest
from tiebeam.inspection import Report, inspect
from tiebeam.surgery.joint.calibration import Calibration, calibrate, spread
from tiebeam.surgery.plan import Progress, no_progress
from tiebeam.surgery.quantize.error_compensation import RIDGE_OF_TIED, Compensation
from tiebeam.surgery.quantize.head_cost import Effect, HeadVariant, measure_heads
from tiebeam.surgery.quantize.precisions import F16, PRECISIONS, Precision
from tiebeam.surgery.quantize.rounding import Array, round_nearest

if TYPE_CHECKING:
    from tiebeam.decode.engine import Engine

TOKENS, TOLERANCE = 1536, 0.01
NEAREST, COMPENSATED = "nearest", "compensated"
_FEWEST = 256
_CLUSTER = 32  # neighbouring positions have similar errors: the interval counts runs of this many as one
_95 = 1.96


@dataclass(frozen=True, slots=True)
class Cost:
    """One line. `which` is "lookup", "head" or "both"; `nats` is the change of the loss per token, with its 95%
    interval `low` to `high`; `same` is the share of positions with the same next token; `bytes` of both matrices."""

    which: str
    embed: Precision | None
    head: Precision | None
    rounding: str
    bytes: int
    nats: float
    low: float
    high: float
    kl: float
    same: float
    tokens: int

    @property
    def precision(self) -> Precision:
        found = self.head or self.embed
        assert found
        return found

    @property
    def writable(self) -> bool:
        """Whether GGUF has a type for it."""
        return all(p is None or p.gguf is not None for p in (self.embed, self.head))

    @property
    def name(self) -> str:
        names = [f"{side} {p.name}" for side, p in (("lookup", self.embed), ("head", self.head)) if p]
        text = f"both {self.precision.name}" if self.embed == self.head else ", ".join(names)
        return f"{text}, error-compensated" if self.rounding == COMPENSATED else text

    def to_dict(self) -> dict[str, Any]:
        sides = {"embed": self.embed, "head": self.head}
        return {
            "which": self.which,
            **{side: p and {"precision": p.name, "bits": p.bits, "gguf": p.gguf} for side, p in sides.items()},
            "rounding": self.rounding,
            "bytes": self.bytes,
            "nats": {"change": self.nats, "low": self.low, "high": self.high},
            "kl": self.kl,
            "same_next_token": self.same,
            "tokens": self.tokens,
        }


@dataclass(frozen=True)
class CostTable:
    """All costs of one model on one text. `bytes` and `dtypes` are those of the stored matrices."""

    report: Report
    rows: tuple[Cost, ...]
    nats: float
    tokens: int
    lookup_tokens: int
    calibrated_tokens: int
    bytes: int
    tolerance: float
    tied: bool
    notes: tuple[str, ...] = ()

    @property
    def recommended(self) -> Cost | None:
        """The smallest whose cost is below the tolerance with its whole interval; None if none is smaller than now."""
        return _smallest(self.rows, self.tolerance, self.bytes)

    @property
    def recommended_gguf(self) -> Cost | None:
        """The same among those that can be written to a GGUF."""
        return _smallest([row for row in self.rows if row.writable], self.tolerance, self.bytes)

    def to_dict(self) -> dict[str, Any]:
        best, writable = self.recommended, self.recommended_gguf
        return {
            "model": self.report.model,
            "tie": str(self.report.tie),
            "nats_per_token": self.nats,
            "bytes": self.bytes,
            "tokens": {"head": self.tokens, "lookup": self.lookup_tokens, "calibration": self.calibrated_tokens},
            "tolerance": self.tolerance,
            "costs": [row.to_dict() for row in self.rows],
            "recommended": best.to_dict() if best else None,
            "recommended_gguf": writable.to_dict() if writable else None,
            "notes": list(self.notes),
        }


def _smallest(rows: Sequence[Cost], tolerance: float, most: int) -> Cost | None:
    fitting = [row for row in rows if row.high < tolerance and row.bytes < most]
    return min(fitting, key=lambda row: (row.bytes, row.high), default=None)


def measure_costs(
    source: str | os.PathLike[str] | Checkpoint,
    text: str,
    *,
    tokens: int = TOKENS,
    tolerance: float = TOLERANCE,
    progress: Progress | None = None,
    engine: str = "auto",
    device: str | None = None,
) -> CostTable:
    """Measure every precision of the embedding and the head of `source` on `text`.

        table = tiebeam.surgery.quantize.measure_costs("model.gguf", text)
        table.recommended.name, table.recommended.nats

    tokens      positions of the text that the head is measured on; the lookup is measured on half of them
    tolerance   nats per token that a recommendation may cost at most, its interval included
    """
    from tiebeam.decode import open_engine

    if tokens < _FEWEST:
        raise BadRequest(f"tokens={tokens} must be at least {_FEWEST}")
    if not tolerance > 0:
        raise BadRequest(f"tolerance={tolerance} must be above 0")
    show = progress or no_progress
    show("opening the model", 0, 1)
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    report = inspect(checkpoint)
    model = open_engine(checkpoint, engine=engine, device=device)
    show("opening the model", 1, 1)
    return _Measurement(model, report, tokens, show).table(text, tolerance)


class _Measurement:
    """The state of one measurement: the hidden states of the original, and the work done so far."""

    def __init__(self, engine: Engine, report: Report, tokens: int, show: Progress) -> None:
        self.engine, self.report, self.tokens, self._show = engine, report, tokens, show
        self.V, self.D = engine.vocab, engine.spec.dim
        self.tied = engine.embed.rows is engine.head.rows
        self.precisions = [p for p in PRECISIONS if p.fits(self.D)]
        self._done, self._total = 0.0, 1.0

    def table(self, text: str, tolerance: float) -> CostTable:
        self._plan_work()
        calibration = calibrate(
            self.engine, text, most=self.tokens, held_out_most=self.tokens + 1,
            progress=lambda done, total: self._advance(self._calibration_work / total),
        )  # fmt: skip
        runs = calibration.held_out
        runs = spread([runs[::2] + runs[1::2]], self.tokens + 1)
        states = np.concatenate([self._hidden(self.engine, run) for run in runs])
        targets = np.concatenate([np.asarray(run[1:]) for run in runs])
        half = runs[: max(1, len(runs) // 2)]
        lookups = {(p, NEAREST): self._looked_up(half, p, None) for p in self.precisions}
        pair = Compensation(calibration.C, RIDGE_OF_TIED) if self.tied else None
        head = Compensation(calibration.C)
        if pair:
            lookups |= {(p, COMPENSATED): self._looked_up(half, p, pair) for p in self.precisions if p != F16}
        variants, rows = self._variants(states, lookups, head, pair)
        nats = measure_heads(self.engine, states, targets, variants, self._rows_done(variants, len(states)))
        costs = [replace(row, **_summary(effect)) for row, effect in rows]
        if not self.tied:
            costs += self._combined(costs, lookups, head, states, targets, tolerance)
        self._show("measuring", 1, 1)
        return CostTable(
            self.report, tuple(costs), float(nats.mean()), len(states), sum(len(run) - 1 for run in half),
            sum(map(len, calibration.runs)), self._stored_bytes(), tolerance, self.tied, self._notes(calibration),
        )  # fmt: skip

    def _notes(self, calibration: Calibration) -> tuple[str, ...]:
        notes = []
        if len(self.precisions) < len(PRECISIONS):
            notes.append(f"the width {self.D} is not a multiple of 32: no block-wise precision fits")
        held_out = sum(len(run) - 1 for run in calibration.held_out)
        if held_out < self.tokens // 2:
            notes.append(f"the text has only {held_out:,} tokens to measure on; give more for narrower intervals")
        return tuple(notes)

    def _hidden(self, engine: Engine, run: list[int]) -> Array:  # -> [t, D]
        h = engine.hidden(run[:-1])
        self._advance(len(h) * self._layers)
        return h

    def _looked_up(self, runs: list[list[int]], precision: Precision, by: Compensation | None) -> Array:
        """The hidden states with a rounded embedding."""
        from tiebeam.decode import Table

        ids = np.unique(np.concatenate([np.asarray(run[:-1]) for run in runs]))
        table = np.zeros((self.engine.embed.vocab, self.D), np.float32)  # pages without a row stay unused
        table[ids] = _rounded(self.engine.embed.lookup(ids), precision, by)
        changed = self.engine.with_tables(Table(table), self.engine.head)
        return np.concatenate([self._hidden(changed, run) for run in runs])

    def _variants(
        self, states: Array, lookups: dict[tuple[Precision, str], Array], head: Compensation, pair: Compensation | None
    ) -> tuple[list[HeadVariant], list[tuple[Cost, Effect]]]:
        """Every head to multiply with, and every line with the effect that fills it."""
        W, (one, two) = self.engine.head.rows, self._bytes_of_roles()
        assert isinstance(W, np.ndarray)
        matrix, variants = W, []
        rows: list[tuple[Cost, Effect]] = []

        def use(which: str, p: Precision, rounding: str, nbytes: int, h: Array) -> Effect:
            sides = {"lookup": (p, None), "head": (None, p), "both": (p, p)}[which]
            effect = Effect(h)
            rows.append((Cost(which, *sides, rounding, nbytes, 0, 0, 0, 0, 0, len(h)), effect))
            return effect

        def make(p: Precision, by: Compensation | None) -> Callable[[int, int], Array]:
            return lambda start, stop: _rounded(matrix[start:stop], p, by)

        size = {p: p.nbytes(self.V, self.D) for p in self.precisions}
        looked = [use("lookup", p, NEAREST, size[p] + two, lookups[p, NEAREST]) for p in self.precisions]
        variants.append(HeadVariant(lambda start, stop: matrix[start:stop], looked))
        for p in self.precisions:
            both = size[p] if self.tied else 2 * size[p]
            uses = [use("head", p, NEAREST, one + size[p], states), use("both", p, NEAREST, both, lookups[p, NEAREST])]
            variants.append(HeadVariant(make(p, None), uses))
            if p == F16:
                continue
            uses = [use("head", p, COMPENSATED, one + size[p], states)]
            together = use("both", p, COMPENSATED, both, lookups[p, COMPENSATED if pair else NEAREST])
            variants.append(HeadVariant(make(p, head), uses if pair else [*uses, together]))
            if pair:
                variants.append(HeadVariant(make(p, pair), [together]))
        return variants, rows

    def _combined(
        self, costs: list[Cost], lookups: dict[tuple[Precision, str], Array], head: Compensation, states: Array,
        targets: Any, tolerance: float,
    ) -> list[Cost]:  # fmt: skip
        """The smallest pair of two precisions that GGUF can store and whose separate costs add up to less."""
        choices = [
            (a, b) for a in costs for b in costs
            if a.which == "lookup" and b.which == "head" and a.writable and b.writable and a.embed != b.head
            and a.high + b.high < tolerance
        ]  # fmt: skip
        if not choices:
            return []
        one, two = self._bytes_of_roles()
        a, b = min(choices, key=lambda ab: (ab[0].bytes + ab[1].bytes, ab[0].high + ab[1].high))
        assert a.embed
        assert b.head
        states = states[: len(lookups[a.embed, NEAREST])]
        effect, p = Effect(lookups[a.embed, NEAREST]), b.head
        by, W = (head if b.rounding == COMPENSATED else None), self.engine.head.rows
        assert isinstance(W, np.ndarray)
        matrix = W
        variant = HeadVariant(lambda start, stop: _rounded(matrix[start:stop], p, by), [effect])
        measure_heads(self.engine, states, targets[: len(states)], [variant])
        cost = Cost("both", a.embed, p, b.rounding, a.bytes - two + b.bytes - one, 0, 0, 0, 0, 0, len(states))
        return [replace(cost, **_summary(effect))]

    def _bytes_of_roles(self) -> tuple[int, int]:
        """Bytes of the embedding and of the head as they are stored; one matrix for both counts for either."""
        pair = self.report.pair
        stored = [matrix.nbytes if matrix else None for matrix in (pair.embed, pair.head)]
        first = next(n for n in stored if n is not None)
        embed, head = (first if n is None else n for n in stored)
        return embed, head

    def _stored_bytes(self) -> int:
        embed, head = self._bytes_of_roles()
        pair = self.report.pair
        return embed if pair.embed is None or pair.head is None or pair.one_storage else embed + head

    # Progress: the work of all stages in multiplications, so that one estimate covers them all.

    def _plan_work(self) -> None:
        pair = 1 if self.tied else 2
        self._layers = max(1.0, self.report.params.total - pair * self.V * self.D)
        head, half, n = self.V * self.D, self.tokens / 2, len(self.precisions)
        self._calibration_work = self.tokens * (self._layers + head)
        passes = n + (n - 1 if self.tied else 0)
        heads = self.tokens * (2 * n - 1) + half * (3 * n - 1)
        self._total = self._calibration_work + self._layers * (self.tokens + half * passes) + 1.5 * head * heads

    def _rows_done(self, variants: list[HeadVariant], N: int) -> Callable[[int], None]:
        left = self._total - self._done
        return lambda rows: self._advance(left * rows / self.V)

    def _advance(self, work: float) -> None:
        self._done += work
        self._show("measuring", min(999, int(1000 * self._done / self._total)), 1000)


def _rounded(rows: Array, precision: Precision, by: Compensation | None) -> Array:  # [R, D] -> [R, D]
    if precision == F16:
        with np.errstate(over="ignore"):
            return rows.astype(np.float16).astype(np.float32)
    return (by.round(rows, precision) if by else round_nearest(rows, precision)).values()


def _summary(effect: Effect) -> dict[str, Any]:
    mean = float(effect.nats.mean())
    runs = len(effect.nats) // _CLUSTER
    if runs > 1:
        means = effect.nats[: runs * _CLUSTER].reshape(runs, _CLUSTER).mean(axis=1)
        spread_of = float(means.std(ddof=1)) / math.sqrt(runs)
    else:
        spread_of = math.inf
    return {
        "nats": mean, "low": mean - _95 * spread_of, "high": mean + _95 * spread_of,
        "kl": float(effect.kl.mean()), "same": float(effect.same.mean()),
    }  # fmt: skip
