"""Initial values of new rows, for each table with a vocabulary dimension on its own.

`mean`       the mean of all trained rows at its own length, plus noise that is orthogonal to it and brings the row to
             the median norm. The mean alone gives every new token the average logit, so it takes at most 1/V of the
             probability (Jensen's inequality); scaled up it would multiply that logit. Without noise several new
             tokens would have one row, and no training could tell them apart.
`subwords`   the mean of the rows of the pieces that the tokenizer makes of the token's text
`like:TOKEN`, `describe:WORDS`   the same for the text that is given

The last three are scaled to the median norm; where several tokens get the same pieces, 2% of noise tells them apart.
Median and means are over trained rows: a row that is zero, NaN, one of several equal ones, or never moved is left out.
A row without a token (padding) is the mean itself: all are equal, and every tool sees that they are untrained. Noise
comes from the token's text, so a run can be repeated. Everything is float32 here and is rounded when it is stored.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import BadRequest
from tiebeam.inspection.row_health import UNTRAINED, classify_rows, row_blocks
from tiebeam.surgery.vocabulary_rows import VocabularyTable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tiebeam.tokenizer import Tokenizer

    Floats = NDArray[np.float32]

_CERTAIN = ("nan", "inf", "zero", "identical")
_TELL_APART = 0.02


@dataclass(frozen=True, slots=True)
class Init:
    """`kind` is mean, subwords, like or describe; `words` what stands behind the colon."""

    kind: str
    words: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.words}" if self.words else self.kind


def read_init(text: str) -> Init:
    """
    >>> read_init("like:hello")
    Init(kind='like', words='hello')
    """
    kind, colon, words = text.partition(":")
    if kind in ("mean", "subwords") and not colon:
        return Init(kind)
    if kind in ("like", "describe") and words.strip():
        return Init(kind, words)
    raise BadRequest(f'init must be "mean", "subwords", "like:TOKEN" or "describe:some words", not "{text}"')


@dataclass(frozen=True, slots=True)
class NewRow:
    """A row to be filled: the text of its token (None: padding), and the ids whose mean it is (None: all rows)."""

    text: str | None
    ids: tuple[int, ...] | None = None


def rows_to_fill(init: Init, texts: Sequence[str | None], tokenizer: Tokenizer | None) -> list[NewRow]:
    """`tokenizer` is the one that does not have the new tokens."""
    if init.kind == "mean":
        return [NewRow(text) for text in texts]
    if tokenizer is None:
        raise BadRequest(f'init="{init}" needs a tokenizer that can be read; use init="mean"')
    if init.kind == "like":
        like = tokenizer.backend.token_to_id(init.words)
        ids = (like,) if like is not None else _pieces(tokenizer, init.words)
        if len(ids) != 1:
            raise BadRequest(
                f'init="{init}": {init.words!r} is {len(ids)} tokens, not one; use init="describe:{init.words}"'
            )
        return [NewRow(text, ids if text is not None else None) for text in texts]
    if init.kind == "describe":
        ids = _pieces(tokenizer, init.words)
        return [NewRow(text, ids if text is not None else None) for text in texts]
    return [NewRow(text, _pieces(tokenizer, text) or None if text is not None else None) for text in texts]


def _pieces(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.backend.encode(text, add_special_tokens=False).ids)


@dataclass(frozen=True, slots=True)
class TrainedRows:
    """The rows of a table that hold something learned (a mask [V]), their mean, and their median norm."""

    mask: NDArray[np.bool_]
    mean: Floats
    median: float


def trained_rows(checkpoint: Checkpoint, table: VocabularyTable, ids: int | None) -> TrainedRows:
    """One pass to find the untrained rows, one for the mean. Rows from the tokenizer's `ids` on are padding."""
    import numpy as np

    _, kinds = classify_rows(checkpoint, table.stored, ids)
    mask = np.ones(table.rows, bool)
    for kind in _CERTAIN:
        mask[kinds.get(kind, [])] = False
    usable = mask.copy()
    for kind in UNTRAINED:
        mask[kinds.get(kind, [])] = False
    if mask.sum() < table.rows // 2:
        mask = usable  # a model that was never trained: its rows are all that there is
    if not mask.any():
        raise BadRequest(f"every row of {table.stored} is zero, NaN or equal to others; there is nothing to start from")
    norms, total = np.zeros(table.rows), np.zeros(table.width, np.float64)
    for at, block in row_blocks(checkpoint, table.stored):
        good = mask[at : at + len(block)]
        norms[at : at + len(block)][good] = np.linalg.norm(block[good], axis=1)
        total += block[good].sum(axis=0, dtype=np.float64)
    return TrainedRows(mask, (total / mask.sum()).astype(np.float32), float(np.median(norms[mask])))


def initial_rows(
    checkpoint: Checkpoint, table: VocabularyTable, rows: Sequence[NewRow], trained: TrainedRows, noise: str = ""
) -> Floats:  # -> [K, ...width]
    """The values of new rows. `noise` names the stream of noise: two tables with the same get the same."""
    import numpy as np

    if table.role == "bias":
        return _initial_bias(checkpoint, table, rows, trained.mask)
    repeated = Counter(row.ids for row in rows if row.text is not None)
    made = np.empty((len(rows), *table.width), np.float32)
    for k, row in enumerate(rows):
        if row.text is None:
            made[k] = trained.mean
            continue
        ids = [i for i in row.ids or () if i < table.rows and trained.mask[i]]
        unit = _noise(row.text, noise, table.width)
        if not ids:
            made[k] = _filled(trained.mean, unit, trained.median)
            continue
        mean = np.mean([checkpoint.rows(table.stored, i, i + 1)[0].astype(np.float32) for i in ids], axis=0)
        length = float(np.linalg.norm(mean))
        share = _TELL_APART if repeated[row.ids] > 1 else 0.0
        row_unit = mean / length if length else unit
        mixed = (1 - share**2) ** 0.5 * row_unit + share * unit
        made[k] = trained.median * mixed / max(float(np.linalg.norm(mixed)), 1e-12)
    return made


def _filled(mean: Floats, unit: Floats, median: float) -> Floats:
    """The mean, brought to the median norm by noise orthogonal to it."""
    import numpy as np

    square = float(mean @ mean)
    if square >= (1 - _TELL_APART**2) * median**2:  # all rows point one way: shorten the mean
        mean = mean * np.float32((1 - _TELL_APART**2) ** 0.5 * median / square**0.5)
        square = float(mean @ mean)
    side = unit - (unit @ mean) / max(square, 1e-30) * mean
    side /= max(float(np.linalg.norm(side)), 1e-12)
    filled: Floats = (mean + side * np.float32(max(0.0, median**2 - square) ** 0.5)).astype(np.float32)
    return filled


def _noise(text: str, stream: str, width: tuple[int, ...]) -> Floats:
    """A unit vector in a direction that depends on the text alone."""
    import numpy as np

    seed = int.from_bytes(hashlib.sha256(f"{stream}\0{text}".encode()).digest()[:8], "little")
    values = np.random.default_rng(seed).standard_normal(width)
    unit: Floats = (values / np.linalg.norm(values)).astype(np.float32)
    return unit


def _initial_bias(
    checkpoint: Checkpoint, table: VocabularyTable, rows: Sequence[NewRow], mask: NDArray[np.bool_]
) -> Floats:  # -> [K]
    import numpy as np

    bias = checkpoint.tensor(table.stored).astype(np.float32).reshape(-1)
    mask = mask & np.isfinite(bias)
    mean = float(bias[mask].mean()) if mask.any() else 0.0
    chosen = [[i for i in row.ids or () if i < len(mask) and mask[i]] for row in rows]
    return np.array([float(bias[ids].mean()) if ids else mean for ids in chosen], np.float32)
