"""Are the two matrices the same numbers, and if not, how do they differ?

An untied pair is known after its first block, and is then described from a sample of rows; a twin has to be
read once, both sides, in fixed buffers. Types that differ (a Q5_0 beside a Q8_0, an F32 beside a BF16) can
only be equal up to rounding: a sample of rows is decoded, and only cosines above 0.99 in every row count.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint.dtypes import BITS, FLOATS
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.tensors import Checkpoint, TensorInfo
from tiebeam.errors import UnreadableInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK = 1 << 20
ROUNDING_COSINE = 0.99
_FIRST_LOOK = 1 << 16  # an untied pair differs within its first rows
_SAMPLE_RUNS, _RUN_ROWS = 32, 4  # rows to describe a difference by
_CLAIM_ROWS = 16  # rows a run, to claim that two roundings are equal
_REMOTE_LIMIT = 64 << 20  # beyond this, a twin on the Hub is judged by the sample and not downloaded


@dataclass(frozen=True, slots=True)
class Difference:
    """How two matrices differ, over `rows` compared rows (all of them, or a sample)."""

    rows: int
    rows_differing: int
    largest: float
    median_cosine: float
    sampled: bool
    extra_rows: int = 0

    @property
    def few_rows(self) -> bool:
        """Only some rows differ: added or retrained tokens, not two matrices of their own."""
        return not self.sampled and self.rows_differing <= self.rows // 2

    def to_dict(self) -> dict[str, Any]:
        largest = self.largest if math.isfinite(self.largest) else None  # JSON has no infinity
        return {**asdict(self), "largest": largest, "few_rows": self.few_rows}


@dataclass(frozen=True, slots=True)
class Equality:
    """The verdict on the numbers. `how` is the sentence that says what was looked at."""

    equal: bool
    how: str
    difference: Difference | None = None


def compare(checkpoint: Checkpoint, embed: str, head: str) -> Equality:
    """Compare the two stored matrices, reading no more than the answer needs."""
    E, W = checkpoint.tensors[embed], checkpoint.tensors[head]
    if E.storage == W.storage and E.strides == W.strides:
        return Equality(True, "both names point at the same bytes")
    if len(E.shape) != 2 or len(W.shape) != 2 or E.shape[1] != W.shape[1]:
        return Equality(False, f"the shapes differ: embed is {list(E.shape)}, head is {list(W.shape)}")
    if not (_decodable(E.dtype) and _decodable(W.dtype)):
        return Equality(False, f"one is packed ({E.dtype}, {W.dtype}) and cannot be compared number by number")
    if E.shape == W.shape and E.dtype == W.dtype and E.strides is None and W.strides is None:
        verdict = _compare_alike(checkpoint, E, W)
    else:
        verdict = _compare_by_rows(checkpoint, E, W)
    return verdict


def same_bytes(checkpoint: Checkpoint, left: str, right: str) -> bool:
    """Whether two tensors have the same type, shape, layout and bytes."""
    a, b = checkpoint.tensors[left], checkpoint.tensors[right]
    alike = (a.dtype, a.shape, a.strides, a.nbytes) == (b.dtype, b.shape, b.strides, b.nbytes)
    return alike and _first_difference(checkpoint, a, b) is None


def _decodable(dtype: str) -> bool:
    return dtype in FLOATS or dtype not in BITS  # what is not a plain type is one of GGUF's


def _compare_alike(checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo) -> Equality:
    """Same shape and type: the bytes decide."""
    remote = not isinstance(checkpoint.files, LocalFiles)
    if remote and E.nbytes + W.nbytes > _REMOTE_LIMIT:
        sample = _sampled(checkpoint, E, W)
        if sample.rows_differing == 0:
            return Equality(True, f"equal in {sample.rows:,} sampled rows; the rest was not downloaded")
        return Equality(False, _describe(sample), sample)
    offset = _first_difference(checkpoint, E, W)
    if offset is None:
        return Equality(True, "every byte was compared")
    sample = _sampled(checkpoint, E, W)
    if E.dtype not in BITS and sample.rows_differing and sample.median_cosine > ROUNDING_COSINE:
        return _by_cosine(checkpoint, E, W)
    if sample.rows_differing <= sample.rows // 2:  # mostly equal: worth an exact count
        difference = _scan(checkpoint, E, W, range(E.shape[0]))
        if difference.rows_differing == 0:
            return Equality(True, "every number was compared; only the signs of zeros differ")
        return Equality(False, _describe(difference), difference)
    return Equality(False, _describe(sample), sample)


def _compare_by_rows(checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo) -> Equality:
    """Different types, row counts or layouts: the numbers decide, over the rows that both have."""
    extra = abs(E.shape[0] - W.shape[0])
    if extra:
        sample = _sampled(checkpoint, E, W)
        if sample.rows_differing <= sample.rows // 2:
            sample = _scan(checkpoint, E, W, range(min(E.shape[0], W.shape[0])))
        longer = "embed" if E.shape[0] > W.shape[0] else "head"
        return Equality(False, f"{longer} has {extra:,} more rows; {_describe(sample)} of those both have", sample)
    if E.dtype != W.dtype:
        return _by_cosine(checkpoint, E, W)
    difference = _scan(checkpoint, E, W, range(E.shape[0]))
    if difference.rows_differing == 0:
        return Equality(True, "every number was compared")
    return Equality(False, _describe(difference), difference)


def _by_cosine(checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo) -> Equality:
    """Equal up to rounding? Only if every sampled row points the same way."""
    import numpy as np

    runs = _sample_runs(E, W, _CLAIM_ROWS)
    cosines = np.concatenate([_cosines(e, w) for _, e, w in _row_blocks(checkpoint, E, W, runs)])
    lowest = float(np.min(cosines, initial=1.0))
    types = f"{E.dtype} and {W.dtype}" if E.dtype != W.dtype else f"two {E.dtype} roundings"
    if lowest > ROUNDING_COSINE:
        return Equality(True, f"{types}, equal up to rounding in {cosines.size:,} sampled rows (cosine > {lowest:.3f})")
    sample = _sampled(checkpoint, E, W)
    return Equality(False, f"{types}; {_describe(sample)}", sample)


def _describe(d: Difference) -> str:
    share = f"{d.rows_differing:,} of {d.rows:,} {'sampled ' if d.sampled else ''}rows differ"
    return f"{share}, by up to {d.largest:.3g}, median cosine {d.median_cosine:.3f}"


def _first_difference(checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo) -> int | None:
    """Offset of the first block whose bytes differ; two readers halve the time where the bytes are local."""
    total = E.nbytes
    if not isinstance(checkpoint.files, LocalFiles) or E.packing or W.packing:
        for at in range(0, total, BLOCK):
            if checkpoint.read_bytes(E.name, at, at + BLOCK) != checkpoint.read_bytes(W.name, at, at + BLOCK):
                return at
        return None
    first = min(total, _FIRST_LOOK)
    if checkpoint.read_bytes(E.name, 0, first) != checkpoint.read_bytes(W.name, 0, first):
        return 0  # the common case of an untied pair: no threads, no second block
    paths = checkpoint.files.path(E.file), checkpoint.files.path(W.file)
    middle = first + (total - first) // 2
    with ThreadPoolExecutor(2) as readers:
        halves = readers.map(
            lambda span: _scan_local(paths, (E.begin, W.begin), *span), [(first, middle), (middle, total)]
        )
        found = [at for at in halves if at is not None]
    return min(found, default=None)


def _scan_local(
    paths: tuple[os.PathLike[str], os.PathLike[str]], begins: tuple[int, int], at: int, end: int
) -> int | None:
    """Compare one span block by block in two buffers that are reused, so that no fresh page is touched."""
    ours, theirs = bytearray(BLOCK), bytearray(BLOCK)
    with open(paths[0], "rb", buffering=0) as left, open(paths[1], "rb", buffering=0) as right:
        while at < end:
            want = min(BLOCK, end - at)
            if want < BLOCK:
                ours, theirs = bytearray(want), bytearray(want)
            for handle, begin, buffer in ((left, begins[0], ours), (right, begins[1], theirs)):
                if os.preadv(handle.fileno(), [buffer], begin + at) != want:
                    raise UnreadableInput(f"{handle.name} became shorter while it was read")
            if ours != theirs:
                return at
            at += want
    return None


def _sample_runs(E: TensorInfo, W: TensorInfo, run_rows: int = _RUN_ROWS) -> list[range]:
    """Short runs of rows spread evenly, the last row among them: added tokens sit at the end."""
    rows = min(E.shape[0], W.shape[0])
    if rows <= _SAMPLE_RUNS * run_rows:
        return [range(rows)]
    step = (rows - run_rows) / (_SAMPLE_RUNS - 1)
    return [range(int(i * step), int(i * step) + run_rows) for i in range(_SAMPLE_RUNS)]


def _row_blocks(
    checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo, runs: list[range]
) -> Iterator[tuple[int, NDArray[np.float64], NDArray[np.float64]]]:
    """(first row, E rows, W rows) in float64, at most a few MiB at a time."""
    import numpy as np

    most = max(1, (BLOCK // 2) // max(1, E.shape[1]))
    whole = {t.name: checkpoint.tensor(t.name) for t in (E, W) if t.strides is not None}  # no rows to seek to
    for run in runs:
        for start in range(run.start, run.stop, most):
            stop = min(start + most, run.stop)
            with np.errstate(invalid="ignore"):  # a NaN that signals is still a NaN
                e, w = (
                    (whole[t.name][start:stop] if t.name in whole else checkpoint.rows(t.name, start, stop)).astype(
                        np.float64
                    )
                    for t in (E, W)
                )
            yield start, e, w


def _gathered(
    blocks: Iterator[tuple[int, NDArray[np.float64], NDArray[np.float64]]],
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Short runs put together, so that a sample is one piece of arithmetic and not dozens."""
    import numpy as np

    held: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    for _, e, w in blocks:
        held.append((e, w))
        if sum(e.size for e, _ in held) >= BLOCK // 2:
            yield np.concatenate([e for e, _ in held]), np.concatenate([w for _, w in held])
            held = []
    if held:
        yield np.concatenate([e for e, _ in held]), np.concatenate([w for _, w in held])


def _sampled(checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo) -> Difference:
    runs = _sample_runs(E, W)
    measured = _measure(checkpoint, E, W, runs)
    return Difference(*measured, sampled=len(runs) > 1, extra_rows=abs(E.shape[0] - W.shape[0]))


def _scan(checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo, rows: range) -> Difference:
    """Every row: exact counts."""
    measured = _measure(checkpoint, E, W, [rows])
    return Difference(*measured, sampled=False, extra_rows=abs(E.shape[0] - W.shape[0]))


def _measure(checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo, runs: list[range]) -> tuple[int, int, float, float]:
    import numpy as np

    rows = differing = 0
    largest, cosines = 0.0, []
    for e, w in _gathered(_row_blocks(checkpoint, E, W, runs)):  # [n, D], [n, D]
        unequal = (e != w) & ~(np.isnan(e) & np.isnan(w))
        rows += len(e)
        differing += int(np.count_nonzero(unequal.any(axis=1)))
        if unequal.any():
            with np.errstate(invalid="ignore"):
                gaps = np.abs(e - w)[unequal]
            largest = max(largest, float(np.max(np.where(np.isnan(gaps), np.inf, gaps))))
        cosines.append(_cosines(e, w))
    median = float(np.median(np.concatenate(cosines))) if rows else 1.0
    return rows, differing, largest, median


def _cosines(e: NDArray[np.float64], w: NDArray[np.float64]) -> NDArray[np.float64]:  # [n, D], [n, D] -> [n]
    """Row cosines; two zero rows point the same way, a zero row and another do not."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.linalg.norm(e, axis=1) * np.linalg.norm(w, axis=1)
        dots = np.einsum("nd,nd->n", e, w)
        both_zero = ~e.any(axis=1) & ~w.any(axis=1)
        cosine = np.where(norms > 0, dots / np.where(norms > 0, norms, 1.0), both_zero.astype(np.float64))
    return np.nan_to_num(cosine, nan=0.0)
