"""Compare the numbers of two stored matrices, and describe how they differ.

Two different matrices differ in the first block, and a sample of rows then describes the difference; two equal ones
must be read completely, in fixed buffers. Two float types (F32 and BF16) are compared by value: the finer is rounded to
the coarser. Where a type is quantised (Q5_0 and Q8_0), equal means the same rows up to rounding: in a sample of rows,
every row must have a cosine above 0.99 and the same length within 10 %. A cosine alone does not see a factor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint.dtypes import BITS, FLOATS, decode, encode
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.tensors import Checkpoint, TensorInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Progress = Callable[[int, int], None]
BLOCK = 1 << 20
ROUNDING_COSINE = 0.99
ROUNDING_LENGTH = 0.1  # how much longer or shorter a row may be after quantisation
_ROUNDED = {"BF16": 7, "F16": 10, "F32": 23, "F64": 52}  # mantissa bits of the types that values can be rounded to
_FIRST_BYTES = 1 << 16  # different matrices differ within their first rows
_SMALL = 16 << 20  # below this, starting threads takes longer than they save
_SAMPLE_RUNS, _RUN_ROWS = 32, 4  # rows to describe a difference
_CLAIM_ROWS = 16  # rows per run, to call two roundings equal
_REMOTE_LIMIT = 64 << 20  # larger matrices on the Hub are compared by a sample and not downloaded


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
        """Only some rows differ, as after adding or training a few tokens."""
        return not self.sampled and self.rows_differing <= self.rows // 2

    def to_dict(self) -> dict[str, Any]:
        largest = self.largest if math.isfinite(self.largest) else None  # JSON has no infinity
        return {**asdict(self), "largest": largest, "few_rows": self.few_rows}


@dataclass(frozen=True, slots=True)
class Equality:
    """Whether the numbers are equal. `how` is what was compared."""

    equal: bool
    how: str
    difference: Difference | None = None


def compare(checkpoint: Checkpoint, embed: str, head: str, progress: Progress = lambda done, total: None) -> Equality:
    """Compare two stored matrices, reading no more than the answer needs.

    `progress` is called with (done, total) while a whole matrix is read; what it raises ends the comparison.
    """
    E, W = checkpoint.tensors[embed], checkpoint.tensors[head]
    if E.storage == W.storage and E.strides == W.strides:
        return Equality(True, "both names point at the same bytes")
    if len(E.shape) != 2 or len(W.shape) != 2 or E.shape[1] != W.shape[1]:
        return Equality(False, f"the shapes differ: embed is {list(E.shape)}, head is {list(W.shape)}")
    if not (_decodable(E.dtype) and _decodable(W.dtype)):
        return Equality(False, f"the element types ({E.dtype}, {W.dtype}) cannot be compared number by number")
    if E.shape == W.shape and E.dtype == W.dtype and E.strides is None and W.strides is None:
        verdict = _compare_same_type(checkpoint, E, W, progress)
    else:
        verdict = _compare_by_rows(checkpoint, E, W, progress)
    return verdict


def _decodable(dtype: str) -> bool:
    return dtype in FLOATS or dtype not in BITS  # other names are GGUF types


def _compare_same_type(checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo, progress: Progress) -> Equality:
    """Same shape and type: compare bytes."""
    remote = not isinstance(checkpoint.files, LocalFiles)
    if remote and E.nbytes + W.nbytes > _REMOTE_LIMIT:
        sample = _sampled(checkpoint, E, W)
        if sample.rows_differing == 0:
            return Equality(True, f"equal in {sample.rows:,} sampled rows; the rest was not downloaded")
        return Equality(False, _describe(sample), sample)
    offset = _first_difference(checkpoint, E, W, progress)
    if offset is None:
        return Equality(True, "every byte was compared")
    sample = _sampled(checkpoint, E, W)
    if E.dtype not in BITS and sample.rows_differing and sample.median_cosine > ROUNDING_COSINE:
        return _by_cosine(checkpoint, E, W)
    if sample.rows_differing <= sample.rows // 2:  # mostly equal: count exactly
        difference = _scan(checkpoint, E, W, range(E.shape[0]), progress)
        if difference.rows_differing == 0:
            return Equality(True, "every number was compared; only the signs of zeros differ")
        return Equality(False, _describe(difference), difference)
    return Equality(False, _describe(sample), sample)


def _compare_by_rows(checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo, progress: Progress) -> Equality:
    """Different types, row counts or layouts: compare the numbers of the rows that both have."""
    extra = abs(E.shape[0] - W.shape[0])
    if extra:
        sample = _sampled(checkpoint, E, W)
        if sample.rows_differing <= sample.rows // 2:
            sample = _scan(checkpoint, E, W, range(min(E.shape[0], W.shape[0])), progress)
        longer = "embed" if E.shape[0] > W.shape[0] else "head"
        return Equality(False, f"{longer} has {extra:,} more rows; {_describe(sample)} of those that both have", sample)
    if E.dtype in _ROUNDED and W.dtype in _ROUNDED and E.dtype != W.dtype:
        return _by_rounding(checkpoint, E, W, progress)
    if E.dtype != W.dtype:
        return _by_cosine(checkpoint, E, W)
    difference = _scan(checkpoint, E, W, range(E.shape[0]), progress)
    if difference.rows_differing == 0:
        return Equality(True, "every number was compared")
    return Equality(False, _describe(difference), difference)


def _by_rounding(checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo, progress: Progress) -> Equality:
    """Equal, if the values of the finer type rounded to the coarser are those of the coarser.

    F16 and BF16 of one F32 matrix may differ in the last bit of BF16, because it was rounded twice.
    """
    import numpy as np

    coarse = min((E, W), key=lambda info: _ROUNDED[info.dtype]).dtype
    twice = {E.dtype, W.dtype} == {"F16", "BF16"}
    remote = not isinstance(checkpoint.files, LocalFiles) and E.nbytes + W.nbytes > _REMOTE_LIMIT
    runs = _sample_runs(E, W, _CLAIM_ROWS) if remote else [range(E.shape[0])]
    types = f"{E.dtype} and {W.dtype}"
    for start, e, w in _row_blocks(checkpoint, E, W, runs):
        progress(start, E.shape[0])
        with np.errstate(invalid="ignore", over="ignore"):
            # signs of zeros do not count, nor what float32 cannot hold
            a, b = (decode(coarse, encode(coarse, x.astype(np.float32)), x.shape).astype(np.float64) for x in (e, w))
            apart = (a != b) & ~(np.isnan(a) & np.isnan(b))
            if twice:
                apart &= ~(np.abs(a - b) <= 2.0**-7 * np.abs(a) + 2.0**-24)
        if apart.any():
            sample = _sampled(checkpoint, E, W)
            return Equality(False, f"{types}; {_describe(sample)}", sample)
    return Equality(True, f"{types}, equal up to rounding to {coarse}{' in a sample of rows' if remote else ''}")


def _by_cosine(checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo) -> Equality:
    """Equal up to rounding, if every sampled row has a cosine close to 1 and keeps its length."""
    import numpy as np

    runs = _sample_runs(E, W, _CLAIM_ROWS)
    blocks = list(_row_blocks(checkpoint, E, W, runs))
    cosines = np.concatenate([_cosines(e, w) for _, e, w in blocks])
    lengths = np.concatenate([_length_ratios(e, w) for _, e, w in blocks])
    lowest, scale = float(np.min(cosines, initial=1.0)), float(np.max(np.abs(lengths - 1), initial=0.0))
    types = f"{E.dtype} and {W.dtype}" if E.dtype != W.dtype else f"two {E.dtype} roundings"
    if lowest > ROUNDING_COSINE and scale < ROUNDING_LENGTH:
        return Equality(True, f"{types}, equal up to rounding in {cosines.size:,} sampled rows (cosine > {lowest:.3f})")
    sample = _sampled(checkpoint, E, W)
    ratio = _median(lengths)
    scaled = f", the head's rows {ratio:.2f} x as long" if lowest > ROUNDING_COSINE else ""
    return Equality(False, f"{types}; {_describe(sample)}{scaled}", sample)


def _describe(d: Difference) -> str:
    count = f"{d.rows_differing:,} of {d.rows:,} {'sampled ' if d.sampled else ''}rows differ"
    return f"{count}, by up to {d.largest:.3g}, median cosine {d.median_cosine:.3f}"


def same_bytes(checkpoint: Checkpoint, left: str, right: str) -> bool:
    """Whether two tensors have the same type, shape, layout and bytes."""
    a, b = checkpoint.tensors[left], checkpoint.tensors[right]
    if (a.dtype, a.shape, a.strides, a.nbytes) != (b.dtype, b.shape, b.strides, b.nbytes):
        return False
    return a.storage == b.storage or _first_difference(checkpoint, a, b) is None


def _first_difference(
    checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo, progress: Progress = lambda done, total: None
) -> int | None:
    """Offset of the first block whose bytes differ. Two threads halve the time for large local files."""
    total = E.nbytes
    if not isinstance(checkpoint.files, LocalFiles) or E.packing or W.packing:
        for at in range(0, total, BLOCK):
            if checkpoint.read_bytes(E.name, at, at + BLOCK) != checkpoint.read_bytes(W.name, at, at + BLOCK):
                return at
            progress(at, total)
        return None
    first = min(total, _FIRST_BYTES)
    if checkpoint.read_bytes(E.name, 0, first) != checkpoint.read_bytes(W.name, 0, first):
        return 0  # the common case of an untied pair: no threads, no second block
    from tiebeam._fs import first_difference  # not at the top: most different pairs end above

    left, right = checkpoint.files.path(E.file), checkpoint.files.path(W.file)
    middle = first + (total - first) // 2
    done = itertools.count(1)  # blocks of both threads: next() is atomic

    def compared() -> None:
        progress(min(total, next(done) * BLOCK), total)

    def compare_range(begin: int, end: int) -> int | None:
        at = first_difference(left, E.begin + begin, right, W.begin + begin, end - begin, BLOCK, compared)
        return None if at is None else begin + at

    if total < _SMALL:
        return compare_range(first, total)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as threads:
        found = threads.map(compare_range, (first, middle), (middle, total))
        return min((at for at in found if at is not None), default=None)


def _sample_runs(E: TensorInfo, W: TensorInfo, run_rows: int = _RUN_ROWS) -> list[range]:
    """Evenly spaced short runs of rows, with the last row, because added tokens are at the end."""
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
    whole = {t.name: checkpoint.tensor(t.name) for t in (E, W) if t.strides is not None}  # must be read whole
    for run in runs:
        for start in range(run.start, run.stop, most):
            stop = min(start + most, run.stop)
            with np.errstate(invalid="ignore"):  # a signalling NaN
                e, w = (
                    (whole[t.name][start:stop] if t.name in whole else checkpoint.rows(t.name, start, stop)).astype(
                        np.float64
                    )
                    for t in (E, W)
                )
            yield start, e, w


def _concatenated(
    blocks: Iterator[tuple[int, NDArray[np.float64], NDArray[np.float64]]],
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Short runs concatenated, so that a sample is one NumPy operation and not dozens."""
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
    """The difference over a sample of rows."""
    runs = _sample_runs(E, W)
    measured = _measure(checkpoint, E, W, runs)
    return Difference(*measured, sampled=len(runs) > 1, extra_rows=abs(E.shape[0] - W.shape[0]))


def _scan(checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo, rows: range, progress: Progress) -> Difference:
    """The difference over all `rows`: exact counts."""
    measured = _measure(checkpoint, E, W, [rows], progress)
    return Difference(*measured, sampled=False, extra_rows=abs(E.shape[0] - W.shape[0]))


def _measure(
    checkpoint: Checkpoint,
    E: TensorInfo,
    W: TensorInfo,
    runs: list[range],
    progress: Progress = lambda done, total: None,
) -> tuple[int, int, float, float]:
    import numpy as np

    rows = differing = 0
    largest, cosines = 0.0, []
    for e, w in _concatenated(_row_blocks(checkpoint, E, W, runs)):  # [n, D], [n, D]
        rows += len(e)
        progress(rows, sum(map(len, runs)))
        with np.errstate(invalid="ignore"):
            gaps = np.abs(e - w)
            widest = gaps.max(axis=1, initial=0.0)  # [n]; NaN where a row has a NaN, or infinity in both
        if np.isnan(widest).any():
            unequal = (e != w) & ~(np.isnan(e) & np.isnan(w))
            widest = np.where(unequal, np.where(np.isnan(gaps), np.inf, gaps), 0.0).max(axis=1)
        differing += int(np.count_nonzero(widest))
        largest = max(largest, float(widest.max(initial=0.0)))
        cosines.append(_cosines(e, w))
    median = _median(np.concatenate(cosines)) if rows else 1.0
    return rows, differing, largest, median


def _median(values: NDArray[np.float64]) -> float:  # [n] -> scalar
    """As np.median, which imports numpy.ma: that takes longer than comparing a sample."""
    ordered: list[float] = sorted(values.tolist())
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _cosines(e: NDArray[np.float64], w: NDArray[np.float64]) -> NDArray[np.float64]:  # [n, D], [n, D] -> [n]
    """Cosine of each row: 1 for two zero rows, 0 for a zero row and another."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.linalg.norm(e, axis=1) * np.linalg.norm(w, axis=1)
        dots = np.einsum("nd,nd->n", e, w)
        if (norms > 0).all():
            plain: NDArray[np.float64] = np.nan_to_num(dots / norms, nan=0.0)
            return plain
        both_zero = ~e.any(axis=1) & ~w.any(axis=1)
        cosine = np.where(norms > 0, dots / np.where(norms > 0, norms, 1.0), both_zero.astype(np.float64))
    return np.nan_to_num(cosine, nan=0.0)


def _length_ratios(e: NDArray[np.float64], w: NDArray[np.float64]) -> NDArray[np.float64]:  # [n, D], [n, D] -> [n]
    """How long the rows of w are, as a multiple of those of e: 1 for two zero rows."""
    import numpy as np

    ratio: NDArray[np.float64]
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = np.linalg.norm(e, axis=1), np.linalg.norm(w, axis=1)
        ratio = np.where(lengths[0] > 0, lengths[1] / np.where(lengths[0] > 0, lengths[0], 1.0), lengths[1] == 0)
    ratio = np.nan_to_num(ratio.astype(np.float64), nan=0.0, posinf=0.0)
    return ratio
