"""Calibrate on text: how much each row matters, and which directions of the hidden states the head uses.

The weight of a row blends three parts. The token counts weigh the errors of the embedding. The mean predictions of
the model weigh the errors of the head, and cover likely tokens that the text does not contain. A uniform part keeps
all other rows from collapsing. A power below one evens the weights out, which helps on other kinds of text. What each
part is worth: docs/joint.md.

The layers are run once over the text. The hidden states are kept, so that everything about the head can be fitted and
compared afterwards without running a layer again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.decode.numpy.ops import softmax
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.decode import Engine

Array = NDArray[Any]
Runs = list[list[int]]

TOKENS = 16384
HELD_OUT_TOKENS = 3072
_FEWEST_TOKENS = 256
_RUN = 512  # tokens per forward pass
_HELD_OUT = 8  # an eighth of the text is held out


@dataclass(frozen=True)
class Calibration:
    """`counts` [V] of all tokens that are not held out. Over `runs`, whose final hidden states [t, D] are `hidden`:
    `predicted` [V], the mean of the predicted probabilities, and `C` [D, D], the second moment of the hidden states.
    `held_out` runs are for evaluation."""

    counts: Array
    predicted: Array
    C: Array
    runs: Runs
    hidden: list[Array]
    held_out: Runs
    held_out_hidden: list[Array]
    tokens: int

    def weights(self, predicted: float = 0.5, uniform: float = 0.02, power: float = 1.0) -> Array:  # -> [V]
        """The weight of each row; they sum to one. A `power` below one evens them out."""
        blend = (1 - uniform) * ((1 - predicted) * self.read + predicted * self.predicted) + uniform / len(self.counts)
        evened: Array = blend**power
        evened /= evened.sum()
        return evened

    @property
    def read(self) -> Array:  # -> [V]
        """How often each token is read."""
        share: Array = self.counts / max(1.0, self.counts.sum())
        return share

    def metric(self, ridge: float) -> Array:  # -> [D, D]
        """C, blended with its mean variance in every direction: a short text does not cover all D directions."""
        D = len(self.C)
        blend: Array = (1 - ridge) * self.C + ridge * (np.trace(self.C) / D) * np.eye(D)
        return blend


def calibrate(
    engine: Engine,
    text: str | Sequence[str],
    most: int = TOKENS,
    held_out_most: int = HELD_OUT_TOKENS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Calibration:
    """Count the tokens of `text` (one text, or one per file) and run up to `most` of them, and some held-out ones."""
    fitted_text, held_out_text = split_documents([text] if isinstance(text, str) else list(text))
    start = start_ids(engine)
    fitted_ids, held_out_ids = (
        [_encode(engine, part, start) for part in side] for side in (fitted_text, held_out_text)
    )
    tokens = sum(map(len, fitted_ids)) + sum(map(len, held_out_ids))
    if tokens < _FEWEST_TOKENS:
        raise BadRequest(
            f"{tokens:,} tokens are too few to calibrate on; give at least {_FEWEST_TOKENS:,}, better 100,000, "
            "of text similar to what the model will read"
        )
    length = min(_RUN, engine.spec.context, max(32, tokens // _HELD_OUT))
    fitted, held_out = (_runs(side, length, start) for side in (fitted_ids, held_out_ids))
    V, D = engine.vocab, engine.spec.dim
    counts = sum((np.bincount(np.asarray(run, np.int64), minlength=V)[:V] for run in fitted), np.zeros(V))
    chosen, apart = spread(fitted, most), spread(held_out, held_out_most)
    C, predicted, positions = np.zeros((D, D)), np.zeros(V), 0
    hidden: list[Array] = []
    total = len(chosen) + len(apart)
    progress(0, total)
    for run in chosen:
        h = engine.hidden(run)  # [t, D]
        C += h.T @ h
        predicted += _mean_prediction(engine, h)
        positions += len(h)
        hidden.append(h)
        progress(len(hidden), total)
    held_out_hidden: list[Array] = []
    for run in apart:
        held_out_hidden.append(engine.hidden(run[:-1]))
        progress(len(hidden) + len(held_out_hidden), total)
    return Calibration(counts, predicted / positions, C / positions, chosen, hidden, apart, held_out_hidden, tokens)


def split_documents(texts: list[str]) -> tuple[list[str], list[str]]:
    """(fitted, held out): of eight or more files every eighth is held out; else the end of each.

    What is held out is never between two pieces that are fitted: names and topics of a document would then be known,
    and the held-out loss would be too good.

    >>> split_documents(["one two three four five six seven eight"])
    (['one two three four five six seven'], [' eight'])
    """
    whole = texts[_HELD_OUT - 1 :: _HELD_OUT]
    share = sum(map(len, whole)) / max(1, sum(map(len, texts)))
    if 0.5 / _HELD_OUT < share < 2 / _HELD_OUT:  # not where the files differ too much in length
        return [t for i, t in enumerate(texts) if i % _HELD_OUT != _HELD_OUT - 1], whole
    fitted, held_out = [], []
    for text in texts:
        end = len(text) * (_HELD_OUT - 1) // _HELD_OUT
        cut = max(text.rfind("\n\n", end // 2, end + 1), text.rfind("\n", end * 7 // 8, end + 1))
        if cut < 0:
            cut = max(text.rfind(" ", 0, end + 1), 0) or end
        fitted.append(text[:cut])
        held_out.append(text[cut:])
    return fitted, held_out


def start_ids(engine: Engine) -> list[int]:
    """The ids that the tokenizer puts before every text: the start token, where there is one."""
    tokenizer = engine.tokenizer
    if tokenizer is None:
        return []
    if tokenizer.start is not None:
        return list(tokenizer.start)
    special = {id for id, token in tokenizer.backend.get_added_tokens_decoder().items() if token.special}
    ids = engine.encode("a")
    end = next((i for i, id in enumerate(ids) if id not in special), 0)
    return ids[:end]


def spread(runs: Runs, most: int) -> Runs:
    """Runs of at most `most` tokens in total, spread evenly over the text."""
    wanted = max(1, most // max(1, len(runs[0]))) if runs else 0
    if len(runs) <= wanted:
        return runs
    return [runs[(2 * i + 1) * len(runs) // (2 * wanted)] for i in range(wanted)]


def _encode(engine: Engine, text: str, start: list[int]) -> list[int]:
    ids = engine.encode(text) if text else []
    return ids[len(start) :] if start and ids[: len(start)] == start else ids


def _runs(texts: list[list[int]], length: int, start: list[int]) -> Runs:
    """Pieces of `length` tokens, each after the start token: so the model meets every text it reads."""
    step = max(1, length - len(start))
    pieces = [ids[at : at + step] for ids in texts for at in range(0, len(ids), step)]
    return [[*start, *piece] for piece in pieces if len(piece) > 1]


def _mean_prediction(engine: Engine, h: Array) -> Array:  # [t, D] -> [V], summed over t
    total = np.zeros(engine.vocab)
    step = max(1, (1 << 23) // engine.vocab)
    for start in range(0, len(h), step):
        logits = engine.unembed(h[start : start + step])  # [s, V]
        total += softmax(logits).sum(axis=0, dtype=np.float64)
    return total
