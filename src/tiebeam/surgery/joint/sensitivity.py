"""Estimate how much an error in the embedding costs: add noise of known size and measure the KL.

An error in the head is an error in the logits, so its cost in nats is known. Between an error in the embedding and
the loss lie all the layers, and there is no gradient; but small noise raises the KL by half its energy times the mean
sensitivity. One run over a few thousand tokens puts embedding and head on one scale (docs/joint.md has the check).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.decode import Table
from tiebeam.surgery.joint.held_out import HeldOut

if TYPE_CHECKING:
    from tiebeam.decode import Engine

Array = NDArray[Any]
_NOISE = 0.05  # relative to the root-mean-square row norm
_TOKENS = 2048


@dataclass(frozen=True)
class _Noisy:
    """An embedding with a random vector of known norm added to every lookup."""

    table: Table
    norm: float
    random: np.random.Generator

    @property
    def vocab(self) -> int:
        return self.table.vocab

    def lookup(self, ids: NDArray[np.int64]) -> Array:  # [T] -> [T, D]
        x = self.table.lookup(ids)
        noise = self.random.standard_normal(x.shape) * (self.norm / np.sqrt(x.shape[1]))
        result: Array = x + noise.astype(x.dtype)
        return result


def lookup_sensitivity(engine: Engine, runs: list[list[int]], norm: float) -> float:
    """Twice the KL per squared norm of an error in the embedding; `norm` is the typical row norm."""
    sample = HeldOut(engine, _sample(runs))
    noisy: Any = _Noisy(engine.embed, _NOISE * norm, np.random.default_rng(0))
    kl = sample.measure(engine.with_tables(noisy, engine.head)).kl
    return 2 * kl / (_NOISE * norm) ** 2


def _sample(runs: list[list[int]]) -> list[list[int]]:
    """A few thousand tokens spread evenly over the text, in short runs."""
    pieces = [run[at : at + 256] for run in runs for at in range(0, len(run), 256)]
    pieces = [piece for piece in pieces if len(piece) > 1]
    wanted = max(1, _TOKENS // max(map(len, pieces)))
    return [pieces[i * len(pieces) // wanted] for i in range(min(wanted, len(pieces)))]
