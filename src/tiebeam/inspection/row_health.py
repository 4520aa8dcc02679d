"""The health of every row of the embedding and the LM head, in one streaming pass over each.

A row is reported under the first kind that fits:

    nan, inf    it holds such a value
    zero        every value is 0
    identical   at least three rows are equal (64 values are compared, at fixed places of the row)
    untouched   it looks like a fresh draw from N(0, s²), where s is the config's initializer_range (0.02 without one):
                norm within 4 standard deviations of s·sqrt(D), mean and projection on the mean row within 4 of theirs,
                4th moment within 5. Rows that this picks out are read a second time; if they are more than a fifth of
                the table, a sample of them decides for all. Nothing is said where trained rows have such norms too:
                where the norms just below and just above are a tenth as frequent, or more.
    mean        it is the mean row up to a tenth of its length: resize_token_embeddings() starts new rows there
    padding     its norm is within the narrow range of the rows that no token has, and most rows are outside of it
    small, large  its norm is below a fifth of the median norm, or above 5 times it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.quantized.packed import packed_matrix
from tiebeam.errors import TiebeamError, UnreadableInput
from tiebeam.families.config_levels import config_levels
from tiebeam.inspection.report import Report
from tiebeam.tokenizer.load import open_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNTRAINED = ("nan", "inf", "zero", "identical", "untouched", "mean", "padding")
"""The kinds of rows that hold nothing learned."""
KINDS = ("nan", "inf", "zero", "identical", "untouched", "mean", "padding", "small", "large")
_BLOCK_BYTES = 1 << 19  # of the stored type: a block and its float32 copies stay in the cache
_IDENTICAL = 3
_SAMPLE = 2048
_FAR = 5.0
_ENCODED = 5000  # rows for which the tokenizer is asked; beyond that, having the id counts


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The rows of one kind. `producible` are those whose token the tokenizer gives for some text."""

    kind: str
    rows: tuple[int, ...]
    producible: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "rows": list(self.rows), "producible": list(self.producible)}


@dataclass(frozen=True, slots=True)
class MatrixRows:
    """The unhealthy rows of one matrix. `role` is embed or head; a tied matrix is listed once, as embed."""

    role: str
    name: str
    rows: int
    median_norm: float
    groups: tuple[RowGroup, ...]

    def count(self, *kinds: str, producible: bool = False) -> int:
        groups = [group for group in self.groups if group.kind in kinds]
        return sum(len(group.producible if producible else group.rows) for group in groups)

    def to_dict(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "name": self.name,
            "rows": self.rows,
            "median_norm": self.median_norm,
            "groups": [group.to_dict() for group in self.groups],
        }


@dataclass(frozen=True, slots=True)
class RowHealth:
    """Both matrices, the texts of the reported rows, and why a matrix was left out."""

    matrices: tuple[MatrixRows, ...]
    texts: Mapping[int, str]
    skipped: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "matrices": [matrix.to_dict() for matrix in self.matrices],
            "texts": {str(row): text for row, text in self.texts.items()},
            "skipped": list(self.skipped),
        }


def row_health(checkpoint: Checkpoint, report: Report) -> RowHealth:
    """Read each stored matrix of the pair once and classify its rows.

    >>> from tiebeam import inspect, open_checkpoint
    >>> checkpoint = open_checkpoint("merged")
    >>> [matrix.name for matrix in row_health(checkpoint, inspect(checkpoint)).matrices]
    ['model.embed_tokens.weight', 'lm_head.weight']
    """
    found: list[tuple[str, str, float, dict[str, list[int]]]] = []
    skipped = []
    pair, ids = report.pair, report.vocabulary.tokenizer_ids
    for role, matrix in (("embed", pair.embed), ("head", None if pair.one_storage else pair.head)):
        if matrix is None:
            continue
        if packed_matrix(checkpoint, matrix.name) or len(checkpoint.tensors[matrix.name].shape) != 2:
            skipped.append(f"{matrix.name} is packed; its rows were not read")
            continue
        try:
            median, kinds = classify_rows(checkpoint, matrix.name, ids)
        except UnreadableInput as error:
            skipped.append(f"{matrix.name} was not read: {error}")
            continue
        found.append((role, matrix.name, median, kinds))
    flagged = sorted({row for *_, kinds in found for rows in kinds.values() for row in rows})
    can = _producible(checkpoint, report, flagged)
    tokens = report.vocabulary.tokens
    texts = {row: text for row in flagged if tokens and (text := tokens.text(row)) is not None}
    return RowHealth(
        tuple(
            MatrixRows(
                role,
                name,
                checkpoint.tensors[name].shape[0],
                median,
                tuple(
                    RowGroup(kind, tuple(kinds[kind]), tuple(row for row in kinds[kind] if row in can))
                    for kind in KINDS
                    if kinds.get(kind)
                ),
            )
            for role, name, median, kinds in found
        ),
        texts,
        tuple(skipped),
    )


def classify_rows(checkpoint: Checkpoint, name: str, ids: int | None) -> tuple[float, dict[str, list[int]]]:
    """(median norm, {kind: rows}) of one matrix; `ids` are the tokenizer's: the rows from there on are padding."""
    import numpy as np

    V, D = checkpoint.tensors[name].shape
    if not V or not D:  # no numbers to judge; the other dimension may be of any size
        return 0.0, {}
    stats = _pass(checkpoint, name)
    norms = stats.norms
    kind = np.full(V, "", dtype="<U9")
    broken = ~np.isfinite(norms)
    if broken.any():
        for start, block in _blocks(checkpoint, name, np.flatnonzero(broken)):
            rows = np.asarray(start)
            kind[rows] = np.where(np.isnan(block).any(axis=1), "nan", np.where(np.isinf(block).any(axis=1), "inf", ""))
    kind[norms == 0] = "zero"
    left = kind == ""
    _, group, counts = np.unique(stats.keys, return_inverse=True, return_counts=True)
    kind[left & (counts[group] >= _IDENTICAL)] = "identical"
    usable = np.isfinite(norms) & (norms > 0)
    median = float(np.median(norms[usable])) if usable.any() else 0.0
    if not median:
        return median, _by_kind(kind)
    mean = stats.total / max(1, int(usable.sum()))  # [D]
    for test, label in ((_untouched, "untouched"), (_like_mean, "mean")):
        at = np.flatnonzero(kind == "")
        kind[test(checkpoint, name, at, norms, stats.means, mean, median)] = label
    kind[(kind == "") & _like_padding(norms, kind, ids, median)] = "padding"
    kind[(kind == "") & (norms * _FAR < median)] = "small"
    kind[(kind == "") & (norms > _FAR * median)] = "large"
    return median, _by_kind(kind)


def _by_kind(kind: NDArray[np.str_]) -> dict[str, list[int]]:
    import numpy as np

    return {label: rows for label in KINDS if (rows := np.flatnonzero(kind == label).tolist())}


@dataclass(frozen=True, slots=True)
class _Stats:
    norms: NDArray[np.float64]  # [V]
    means: NDArray[np.float64]  # [V]
    keys: NDArray[np.uint64]  # [V], a hash of 64 values
    total: NDArray[np.float64]  # [D], the sum of the finite rows


def _pass(checkpoint: Checkpoint, name: str) -> _Stats:
    """One pass over the matrix: norm, mean and a key of every row, and the sum of all."""
    import numpy as np

    V, D = checkpoint.tensors[name].shape
    places = np.unique(np.linspace(0, max(0, D - 1), min(D, 64)).astype(int))
    norms, means, total = np.empty(V), np.empty(V), np.zeros(D)
    keys = np.empty(V, np.uint64)
    odd = np.random.default_rng(0).integers(0, 1 << 62, len(places), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    ones = np.ones(D, np.float32)
    for at, block in row_blocks(checkpoint, name):
        rows = slice(at, at + len(block))
        with np.errstate(all="ignore"):
            squares = np.einsum("nd,nd->n", block, block)
            norms[rows] = np.sqrt(squares.astype(np.float64))
            means[rows] = (block @ ones) / max(1, D)
            finite = np.isfinite(squares)
            total += (np.ones(len(block), np.float32) @ block) if finite.all() else block[finite].sum(axis=0)
        values = (block[:, places] + np.float32(0)).view(np.uint32)  # -0.0 + 0.0 is 0.0
        keys[rows] = (values * odd).sum(axis=1, dtype=np.uint64)
    return _Stats(norms, means, keys, total)


def row_blocks(checkpoint: Checkpoint, name: str) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """(first row, rows in float32), a block at a time."""
    import numpy as np

    info = checkpoint.tensors[name]
    V = info.shape[0]
    whole = checkpoint.tensor(name) if info.strides is not None else None
    step = max(1, _BLOCK_BYTES * V // max(1, info.nbytes))
    for at in range(0, V, step):
        rows = whole[at : at + step] if whole is not None else checkpoint.rows(name, at, at + step)
        yield at, np.asarray(rows, np.float32)


def _blocks(
    checkpoint: Checkpoint, name: str, rows: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
    """Given rows once more: (their numbers, their values), runs of neighbours read together."""
    import numpy as np

    if not len(rows):
        return
    strided = checkpoint.tensors[name].strides is not None
    whole = checkpoint.tensor(name) if strided else None
    cuts = np.flatnonzero(np.diff(rows) > 1) + 1
    for run in np.split(rows, cuts):
        for part in np.array_split(run, max(1, len(run) // 512)):
            first, last = int(part[0]), int(part[-1]) + 1
            values = whole[first:last] if whole is not None else checkpoint.rows(name, first, last)
            yield part, np.asarray(values, np.float32)


def _untouched(
    checkpoint: Checkpoint,
    name: str,
    at: NDArray[np.intp],
    norms: NDArray[np.float64],
    means: NDArray[np.float64],
    mean: NDArray[np.float64],
    median: float,
) -> NDArray[np.intp]:
    """Those of the rows `at` that look like a fresh normal draw."""
    import numpy as np

    D = len(mean)
    if D < 8:
        return at[:0]  # too few values to tell
    s = _initializer_range(checkpoint)
    near = (np.abs(norms[at] - s * D**0.5) < 4 * s / 2**0.5) & (np.abs(means[at]) < 4 * s / D**0.5)
    rows: NDArray[np.intp] = at[near]
    beside = np.abs(np.abs(norms[at] - s * D**0.5) - 8 * s / 2**0.5) < 4 * s / 2**0.5  # one such band on each side
    if np.count_nonzero(beside) > max(4, len(rows) // 5):
        return rows[:0]
    length = float(np.linalg.norm(mean))
    # The mean row of a table of fresh rows is itself noise: no direction to project on.
    direction = mean / length if length > 4 * s * (D / max(1, len(norms))) ** 0.5 else np.zeros(D)

    def fresh(some: NDArray[np.intp]) -> NDArray[np.bool_]:
        passed = []
        for _, x in _blocks(checkpoint, name, some):
            fourth = np.mean((x / s) ** 4, axis=1)
            projected = np.abs(x @ direction.astype(np.float32))
            passed.append((np.abs(fourth - 3) < 5 * (96 / D) ** 0.5) & (projected < 4 * s))
        return np.concatenate(passed) if passed else np.zeros(0, bool)

    if len(rows) <= max(_SAMPLE, len(norms) // 5):
        return rows[fresh(rows)]
    sample = rows[:: -(-len(rows) // _SAMPLE)]
    return rows if fresh(sample).mean() > 0.9 else rows[:0]


def _like_mean(
    checkpoint: Checkpoint,
    name: str,
    at: NDArray[np.intp],
    norms: NDArray[np.float64],
    means: NDArray[np.float64],
    mean: NDArray[np.float64],
    median: float,
) -> NDArray[np.intp]:
    """Those of the rows `at` that are the mean row, up to a tenth of its length."""
    import numpy as np

    length = float(np.linalg.norm(mean))
    rows = at[np.abs(norms[at] - length) < 0.1 * length]
    if not length or len(rows) > len(norms) // 2:
        return rows[:0]  # rows are alike because the table is, not because they were started at its mean
    kept = []
    for part, x in _blocks(checkpoint, name, rows):
        kept.append(part[np.linalg.norm(x - mean.astype(np.float32), axis=1) < 0.1 * length])
    return np.concatenate(kept) if kept else rows[:0]


def _like_padding(
    norms: NDArray[np.float64], kind: NDArray[np.str_], ids: int | None, median: float
) -> NDArray[np.bool_]:
    """Rows of tokens whose norm is in the narrow range of the padding's."""
    import numpy as np

    padding = norms[ids:] if ids is not None else norms[:0]
    padding = padding[np.isfinite(padding) & (padding > 0)]
    nothing = np.zeros(len(norms), bool)
    if len(padding) < 16:
        return nothing
    low, high = float(padding.min()), float(padding.max())
    inside = (norms >= low * 0.98) & (norms <= high * 1.02)
    if high - low > 0.2 * median or low * 0.98 <= median <= high * 1.02 or inside.mean() > 0.2:
        return nothing
    return inside


def _initializer_range(checkpoint: Checkpoint) -> float:
    for _, level in reversed(list(config_levels(checkpoint.config or {}))):
        value = level.get("initializer_range", level.get("init_std"))
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 10:
            return float(value)
    return 0.02


def _producible(checkpoint: Checkpoint, report: Report, rows: Sequence[int]) -> frozenset[int]:
    """The rows whose token the tokenizer can give: an added token, or one that its own text encodes to."""
    tokens = report.vocabulary.tokens
    if tokens is None:
        return frozenset()
    named = [row for row in rows if tokens.text(row) is not None]
    encodes = _encodes(checkpoint) if len(named) <= _ENCODED else None
    if encodes is None:
        return frozenset(named)
    return frozenset(row for row in named if row in tokens.added or encodes(row))


def _encodes(checkpoint: Checkpoint) -> Callable[[int], bool] | None:
    try:
        tokenizer = open_tokenizer(checkpoint)
    except TiebeamError:
        return None
    if tokenizer is None:
        return None

    def encodes(row: int) -> bool:
        try:
            text = tokenizer.decode([row])
            return "\ufffd" in text or row in tokenizer.encode(text)  # a part of a character needs its neighbours
        except TiebeamError:
            return False

    return encodes
