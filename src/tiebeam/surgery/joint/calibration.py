"""Calibrate on text: how much each row matters, and which directions of the hidden states the head uses.

The weight of a row blends three parts. The token counts weigh the errors of the embedding. The mean predictions of
the model weigh the errors of the head, and cover likely tokens that the text does not contain. A uniform part keeps
all other rows from collapsing. A power below one evens the weights out, which helps on other kinds of text. What each
part is worth: docs/joint.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.decode.numpy.ops import softmax
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.decode import Engine
    from tiebeam.decode.engine import Tokens

Array = NDArray[Any]

_FEWEST_TOKENS = 256
_RUN = 512  # tokens per forward pass
_HELD_OUT = 8  # every eighth run is held out


@dataclass(frozen=True)
class Calibration:
    """`counts` [V] of the tokens that are not held out. Over `runs`: `predicted` [V], the mean of the predicted
    probabilities, and `C` [D, D], the second moment of the final hidden states. `held_out` runs are for evaluation."""

    counts: Array
    predicted: Array
    C: Array
    runs: list[list[int]]
    held_out: list[list[int]]
    tokens: int

    def weights(self, predicted: float = 0.5, uniform: float = 0.02, power: float = 1.0) -> Array:  # -> [V]
        """The weight of each row; they sum to one. A `power` below one evens them out."""
        seen = self.counts / max(1.0, self.counts.sum())
        blend = (1 - uniform) * ((1 - predicted) * seen + predicted * self.predicted) + uniform / len(seen)
        evened: Array = blend**power
        evened /= evened.sum()
        return evened

    def metric(self, ridge: float) -> Array:  # -> [D, D]
        """C, blended with its mean variance in every direction: a short text does not cover all D directions."""
        D = len(self.C)
        blend: Array = (1 - ridge) * self.C + ridge * (np.trace(self.C) / D) * np.eye(D)
        return blend


def calibrate(
    engine: Engine,
    text: str | Tokens,
    most: int = 16384,
    held_out_most: int = 4096,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Calibration:
    """Count the tokens of `text`, run up to `most` of them, and hold out every eighth run."""
    tokens = engine.encode(text) if isinstance(text, str) else list(text)
    if len(tokens) < _FEWEST_TOKENS:
        raise BadRequest(
            f"{len(tokens):,} tokens are too few to calibrate on; give at least {_FEWEST_TOKENS:,}, better 100,000, "
            "of text similar to what the model will read"
        )
    length = min(_RUN, engine.spec.context, max(32, len(tokens) // _HELD_OUT))
    runs = [tokens[at : at + length] for at in range(0, len(tokens), length)]
    held_out = [run for run in runs[_HELD_OUT - 1 :: _HELD_OUT] if len(run) > 1]
    fitted = [run for i, run in enumerate(runs) if i % _HELD_OUT != _HELD_OUT - 1]
    V = engine.vocab
    counts = np.zeros(V)
    for run in fitted:
        np.add.at(counts, run, 1.0)
    chosen = spread(fitted, most)
    D = engine.spec.dim
    C, predicted, positions = np.zeros((D, D)), np.zeros(V), 0
    for done, run in enumerate(chosen):
        h = engine.hidden(run)  # [t, D]
        C += h.T.astype(np.float64) @ h
        predicted += _mean_prediction(engine, h)
        positions += len(h)
        progress(done + 1, len(chosen))
    return Calibration(
        counts, predicted / positions, C / positions, chosen, spread(held_out, held_out_most), len(tokens)
    )


def spread(runs: list[list[int]], most: int) -> list[list[int]]:
    """Runs of at most `most` tokens in total, spread evenly over the text."""
    wanted = max(1, most // max(1, len(runs[0])))
    if len(runs) <= wanted:
        return runs
    return [runs[i * len(runs) // wanted] for i in range(wanted)]


def _mean_prediction(engine: Engine, h: Array) -> Array:  # [t, D] -> [V], summed over t
    total = np.zeros(engine.vocab)
    step = max(1, (1 << 23) // engine.vocab)
    for start in range(0, len(h), step):
        logits = engine.unembed(h[start : start + step])  # [s, V]
        total += softmax(logits).sum(axis=0, dtype=np.float64)
    return total
