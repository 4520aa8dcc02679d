"""Measure how much an error in the embedding costs: run the layers with the embedding of a first fit.

An error in the head is an error in the logits, so its cost in nats is known. Between an error in the embedding and the
loss lie all the layers. Small errors raise the KL by half their energy times a sensitivity, and one run over a
thousand tokens gives it. The errors of a fit are measured and not random noise of the same size: they lie in other
directions, and cost up to three times as much (docs/joint.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.surgery.joint.held_out import HeldOut

if TYPE_CHECKING:
    from tiebeam.decode import Engine, Table

Array = NDArray[Any]
_TOKENS = 1536
_LENGTH = 256  # tokens of each run


def embedding_sensitivity(
    engine: Engine,
    embed: Table,
    runs: list[list[int]],
    hidden: list[Array] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> float:
    """Twice the KL per squared norm of an error, with `embed` in place of the original embedding.

    `hidden` [t, D] are the hidden states of `runs` where they are known.
    """
    wanted = max(1, _TOKENS // min(_LENGTH, max(map(len, runs))))
    at = sorted({i * len(runs) // wanted for i in range(wanted)})
    given = None if hidden is None else [hidden[i][: min(_LENGTH, len(runs[i])) - 1] for i in at]
    sample = HeldOut(engine, [runs[i][:_LENGTH] for i in at], given)
    ids = np.concatenate([np.asarray(run[:-1]) for run in sample.runs])
    wrong = engine.embed.lookup(ids) - embed.lookup(ids)
    energy = float(np.einsum("td,td->t", wrong, wrong, dtype=np.float64).mean())
    kl = sample.measure(engine.with_tables(embed, engine.head), progress).kl
    return max(2 * kl / energy, 1e-12) if energy > 0 else 1.0
