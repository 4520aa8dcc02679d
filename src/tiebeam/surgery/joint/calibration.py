"""What the text tells: how often each token matters, and in which directions the head reads its hidden states.

The weight of a row blends three things. The counts of the text are what the lookup sees. The mean of the model's own
predictions over the text is what the head's error is weighted by, and it reaches words that the text does not
contain but might have. A uniform share keeps every other row from collapsing; a power below one evens the rows out, for
the sake of text of another kind. What they are worth: docs/joint.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.decode import Decoder

Array = NDArray[Any]

_FEWEST_TOKENS = 256
_RUN = 512  # tokens run in one go
_HELD_OUT = 8  # every eighth run is held out


@dataclass(frozen=True)
class Calibration:
    """`counts` [V] over all the text that is not held out, `predicted` [V] the mean of the model's predictions, `C`
    [D, D] the second moment of the final hidden states, both over `runs`; `held_out` are runs nothing was fitted to."""

    counts: Array
    predicted: Array
    C: Array
    runs: list[list[int]]
    held_out: list[list[int]]
    tokens: int

    def weights(self, predicted: float = 0.5, uniform: float = 0.02, power: float = 1.0) -> Array:  # -> [V]
        """How much each row matters; sums to one. A `power` below one evens the rows out."""
        seen = self.counts / max(1.0, self.counts.sum())
        blend = (1 - uniform) * ((1 - predicted) * seen + predicted * self.predicted) + uniform / len(seen)
        evened: Array = blend**power
        evened /= evened.sum()
        return evened

    def metric(self, ridge: float) -> Array:  # -> [D, D]
        """C, with a share of its mean variance in every direction: text too short to fill D directions says nothing
        about the others."""
        D = len(self.C)
        blend: Array = (1 - ridge) * self.C + ridge * (np.trace(self.C) / D) * np.eye(D)
        return blend


def calibrate(
    decoder: Decoder,
    text: str | Sequence[int],
    most: int = 16384,
    held_out_most: int = 4096,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Calibration:
    """Count all of `text`, run up to `most` tokens of it, hold out every eighth run."""
    tokens = decoder.encode(text) if isinstance(text, str) else list(text)
    if len(tokens) < _FEWEST_TOKENS:
        raise BadRequest(
            f"{len(tokens):,} tokens are too few to calibrate with; give at least {_FEWEST_TOKENS:,}, better 100,000, "
            "of the kind of text that the model will read"
        )
    length = min(_RUN, decoder.spec.context, max(32, len(tokens) // _HELD_OUT))
    runs = [tokens[at : at + length] for at in range(0, len(tokens), length)]
    held_out = [run for run in runs[_HELD_OUT - 1 :: _HELD_OUT] if len(run) > 1]
    fitted = [run for i, run in enumerate(runs) if i % _HELD_OUT != _HELD_OUT - 1]
    V = decoder.vocab
    counts = np.zeros(V)
    for run in fitted:
        np.add.at(counts, run, 1.0)
    chosen = spread(fitted, most)
    D = decoder.spec.dim
    C, predicted, positions = np.zeros((D, D)), np.zeros(V), 0
    for done, run in enumerate(chosen):
        h = decoder.hidden(run)  # [t, D]
        C += h.T.astype(np.float64) @ h
        predicted += _mean_prediction(decoder, h)
        positions += len(h)
        progress(done + 1, len(chosen))
    return Calibration(
        counts, predicted / positions, C / positions, chosen, spread(held_out, held_out_most), len(tokens)
    )


def spread(runs: list[list[int]], most: int) -> list[list[int]]:
    """At most `most` tokens of runs, taken evenly from all over the text."""
    wanted = max(1, most // max(1, len(runs[0])))
    if len(runs) <= wanted:
        return runs
    return [runs[i * len(runs) // wanted] for i in range(wanted)]


def _mean_prediction(decoder: Decoder, h: Array) -> Array:  # [t, D] -> [V], summed over t
    total = np.zeros(decoder.vocab)
    step = max(1, (1 << 23) // decoder.vocab)
    for start in range(0, len(h), step):
        logits = decoder.unembed(h[start : start + step])  # [s, V]
        logits = np.exp(logits - logits.max(axis=1, keepdims=True))
        total += (logits / logits.sum(axis=1, keepdims=True)).sum(axis=0, dtype=np.float64)
    return total
