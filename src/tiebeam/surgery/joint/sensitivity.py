"""Estimate how much an error in the embedding costs: add noise of known size and measure the KL.

An error in the head is an error in the logits, so its cost in nats is known. Between an error in the embedding and
the loss lie all the layers, and there is no gradient; but small noise raises the KL by half its energy times the mean
sensitivity. One run over a thousand tokens puts embedding and head on one scale (docs/joint.md has the check).
"""

from __future__ import annotations

from collections.abc import Callable
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
_TOKENS = 1536
_LENGTH = 256  # tokens of each run


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


def lookup_sensitivity(
    engine: Engine,
    runs: list[list[int]],
    norm: float,
    hidden: list[Array] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> float:
    """Twice the KL per squared norm of an error in the embedding; `norm` is the typical row norm, `hidden` [t, D] the
    hidden states of `runs` where they are known."""
    wanted = max(1, _TOKENS // min(_LENGTH, max(map(len, runs))))
    at = sorted({i * len(runs) // wanted for i in range(wanted)})
    given = None if hidden is None else [hidden[i][: min(_LENGTH, len(runs[i])) - 1] for i in at]
    sample = HeldOut(engine, [runs[i][:_LENGTH] for i in at], given)
    noisy: Any = _Noisy(engine.embed, _NOISE * norm, np.random.default_rng(0))
    kl = sample.measure(engine.with_tables(noisy, engine.head), progress).kl
    return 2 * kl / (_NOISE * norm) ** 2
