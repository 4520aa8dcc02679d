"""How much an error of the lookup costs, found by making one: noise on the embeddings, and the KL that follows.

The head's errors are in nats as they stand. For the lookup's, the whole trunk lies between cause and effect, and no
gradient is at hand; but noise of known size, small against the rows, raises the KL by half its energy times the mean
sensitivity. One run of a few thousand tokens puts both ends of the pair on one scale, and the balance that was searched
for before comes out within a few per cent (docs/joint.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.decode import Table
from tiebeam.surgery.joint.held_out import HeldOut

if TYPE_CHECKING:
    from tiebeam.decode import Decoder

Array = NDArray[Any]
_NOISE = 0.05  # of the root mean square of a row's length
_TOKENS = 2048


@dataclass(frozen=True)
class _Noisy:
    """An embedding whose every lookup is off by a random vector of known length."""

    table: Table
    length: float
    random: np.random.Generator

    @property
    def vocab(self) -> int:
        return self.table.vocab

    def lookup(self, ids: NDArray[np.int64]) -> Array:  # [T] -> [T, D]
        x = self.table.lookup(ids)
        noise = self.random.standard_normal(x.shape) * (self.length / np.sqrt(x.shape[1]))
        result: Array = x + noise.astype(x.dtype)
        return result


def lookup_sensitivity(decoder: Decoder, runs: list[list[int]], length: float) -> float:
    """Twice the KL per squared length of an error in the lookup; `length` is the usual length of a row."""
    probe = HeldOut(decoder, _some(runs))
    noisy: Any = _Noisy(decoder.embed, _NOISE * length, np.random.default_rng(0))
    kl = probe.measure(decoder.with_ends(noisy, decoder.head)).kl
    return 2 * kl / (_NOISE * length) ** 2


def _some(runs: list[list[int]]) -> list[list[int]]:
    """A few thousand tokens from all over the text, in runs short enough to be many."""
    pieces = [run[at : at + 256] for run in runs for at in range(0, len(run), 256)]
    pieces = [piece for piece in pieces if len(piece) > 1]
    wanted = max(1, _TOKENS // max(map(len, pieces)))
    return [pieces[i * len(pieces) // wanted] for i in range(min(wanted, len(pieces)))]
