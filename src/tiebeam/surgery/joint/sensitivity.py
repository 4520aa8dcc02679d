"""Measure how much an error in the embedding costs: run the layers with the embedding of a first fit.

An error in the head is an error in the logits, so its cost in nats is known. Between an error in the embedding and the
loss lie all the layers. Small errors raise the KL by half their energy times a sensitivity, and one run over a
thousand tokens of the held-out text, whose hidden states are known, gives it. The errors of a fit are measured and not
random noise of the same size: they lie in other directions, and cost up to three times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.surgery.joint.held_out import HeldOut

if TYPE_CHECKING:
    from tiebeam.decode import Table

Array = NDArray[Any]
_TOKENS = 1536


def embedding_sensitivity(
    held_out: HeldOut, embed: Table, progress: Callable[[int, int], None] = lambda done, total: None
) -> float:
    """Twice the KL per squared norm of an error, with `embed` in place of the original embedding."""
    sample = held_out.first(_TOKENS)
    engine = sample.original
    ids = np.concatenate([np.asarray(run[:-1]) for run in sample.runs])
    wrong = engine.embed.lookup(ids) - embed.lookup(ids)
    energy = float(np.einsum("td,td->t", wrong, wrong, dtype=np.float64).mean())
    kl = sample.measure(engine.with_tables(embed, engine.head), progress).kl
    return max(2 * kl / energy, 1e-12) if energy > 0 else 1.0
