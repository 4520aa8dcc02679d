"""Calibrate on text: how much each row matters, and which directions of the hidden states the head uses.

The weight of a row blends three parts. The token counts weigh the errors of the embedding. The mean predictions of
the model weigh the errors of the head, and cover likely tokens that the text does not contain. A uniform part keeps
all other rows from collapsing. A power below one evens the weights out, which helps on other kinds of text. What each
part is worth: docs/joint.md.

The layers are run once over the text. Only the hidden states of the held-out part are kept: there everything about the
head is compared afterwards without running a layer again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tiebeam.decode.numpy.ops import softmax
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.decode import Engine

Array = NDArray[Any]
Ids = NDArray[np.int64]
Runs = list[list[int]]
Run = TypeVar("Run", bound=Sized)

TOKENS = 16384
HELD_OUT_TOKENS = 3072
_FEWEST_TOKENS = 256
_RUN = 512  # tokens per forward pass
_HELD_OUT = 8  # an eighth of the text is held out
_FULL = 16384  # tokens of a file from which on it counts as much as any longer one
_PIECE = 1 << 18  # characters that are encoded at a time


@dataclass(frozen=True)
class Calibration:
    """`counts` [V] of all tokens that are not held out. Over `runs`: `predicted` [V], the mean of the predicted
    probabilities, and `C` [D, D], the second moment of the final hidden states. `held_out` runs are for evaluation;
    their hidden states [t - 1, D] are kept."""

    counts: Array
    predicted: Array
    C: Array
    runs: Runs
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
    fitted, held_out = ([_runs(ids, length, start) for ids in side] for side in (fitted_ids, held_out_ids))
    V, D = engine.vocab, engine.spec.dim
    counts = _counts(fitted, V)
    chosen, apart = (
        [run.tolist() for run in spread(side, number)] for side, number in ((fitted, most), (held_out, held_out_most))
    )
    C, predicted, positions = np.zeros((D, D)), np.zeros(V), 0
    total = len(chosen) + len(apart)
    progress(0, total)
    for done, run in enumerate(chosen, 1):
        h = engine.hidden(run)  # [t, D]
        C += h.T @ h
        predicted += _mean_prediction(engine, h)
        positions += len(h)
        progress(done, total)
    held_out_hidden: list[Array] = []
    for done, run in enumerate(apart, len(chosen) + 1):
        held_out_hidden.append(engine.hidden(run[:-1]))
        progress(done, total)
    return Calibration(counts, predicted / positions, C / positions, chosen, apart, held_out_hidden, tokens)


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


def spread(files: list[list[Run]], most: int) -> list[Run]:
    """Runs of at most `most` tokens in total: as many of each file, as far as it has them, spread evenly over it.

    >>> spread([[[1, 2], [3, 4], [5, 6], [7, 8]], [[9, 9]]], 6)
    [[3, 4], [7, 8], [9, 9]]
    """
    files = [runs for runs in files if runs]
    wanted = max(1, most // max((len(run) for runs in files for run in runs), default=1))
    files = _evenly(files, wanted)
    numbers = [0] * len(files)
    while sum(numbers) < min(wanted, sum(map(len, files))):
        fewest = min(n for n, runs in zip(numbers, files, strict=True) if n < len(runs))
        at = next(i for i, runs in enumerate(files) if numbers[i] == fewest < len(runs))
        numbers[at] += 1
    return [run for runs, n in zip(files, numbers, strict=True) for run in _evenly(runs, n)]


def _evenly(items: list[Any], number: int) -> list[Any]:
    if len(items) <= number:
        return items
    return [items[(2 * i + 1) * len(items) // (2 * number)] for i in range(number)]


def _counts(files: list[list[Ids]], vocab: int) -> Array:  # -> [V]
    """How often each token occurs. Long files count alike, whatever their length: of one kind of text
    there may be ten times as much as of another. Short ones count less. The sum is the number of tokens."""
    counts, tokens = np.zeros(vocab), 0
    for runs in files:
        here = sum((np.bincount(run, minlength=vocab)[:vocab] for run in runs), np.zeros(vocab))
        tokens += int(here.sum())
        counts += here / max(here.sum(), _FULL)
    scaled: Array = counts * (tokens / max(counts.sum(), 1e-30))
    return scaled


def _encode(engine: Engine, text: str, start: list[int]) -> Ids:
    """The ids without the start token. A long text is encoded in pieces of whole lines, because a tokenizer needs about
    a hundred bytes of memory for every character."""
    found: list[Ids] = [np.zeros(0, np.int64)]
    at = 0
    while at < len(text):
        end = at + _PIECE
        if end < len(text):
            end = text.rfind("\n", at, end) + 1 or max(text.rfind(" ", at + 1, end), 0) or end
        ids = engine.encode(text[at:end])
        found.append(np.asarray(ids[len(start) :] if start and ids[: len(start)] == start else ids, np.int64))
        at = end
    return np.concatenate(found)


def _runs(ids: Ids, length: int, start: list[int]) -> list[Ids]:
    """Pieces of `length` tokens, each after the start token: so the model meets every text it reads."""
    step = max(1, length - len(start))
    pieces = [ids[at : at + step] for at in range(0, len(ids), step)]
    return [np.concatenate([np.asarray(start, np.int64), piece]) for piece in pieces if len(piece) > 1]


def _mean_prediction(engine: Engine, h: Array) -> Array:  # [t, D] -> [V], summed over t
    total = np.zeros(engine.vocab)
    step = max(1, (1 << 22) // engine.vocab)
    for start in range(0, len(h), step):
        logits = engine.unembed(h[start : start + step])  # [s, V]
        total += softmax(logits).sum(axis=0, dtype=np.float64)
    return total
