"""Are two stored matrices roundings of one matrix?

If both came from one matrix, they are no further apart than the rounding errors of their two types. That is checked
for every row, and for the whole. The error of a type is not a constant: it follows from the scales that these very
rows get with as many bits in blocks of 32 (for a K type, whose scales are finer, that is an upper bound). Types below
3 bits are never called equal: their errors would hide a real difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiebeam.checkpoint import Checkpoint
from tiebeam.pair import Pair, Tie
from tiebeam.surgery.quantize.precisions import BLOCK, Precision
from tiebeam.surgery.quantize.rounding import Array, round_nearest

_BITS = {
    "Q8_0": 8, "Q6_K": 6, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5, "Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "IQ4_NL": 4, "IQ4_XS": 4,
    "Q3_K": 3,
}  # fmt: skip
_MANTISSA = {"F64": 52, "F32": 23, "F16": 10, "BF16": 7}
_ROW, _WHOLE = 1.5, 1.2  # times the expected distance, for one row and for all together
_UNEVEN = 1.1  # the largest value of a block of 32 is rounded by up to a whole step
_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Sameness:
    """`finer` is the tensor to keep. `ratio`: the distance of the two over what rounding explains; at most about 1."""

    same: bool
    finer: str
    ratio: float

    def __str__(self) -> str:
        return f"apart by {self.ratio:.2f} times what rounding to their types explains, over all rows"


def rounding_error(dtype: str, rows: Array) -> Array | None:  # [R, D] -> [R]
    """How far rounding to `dtype` moves rows like these (Euclidean); None for a type below 3 bits or an unknown one.

    Errors are uniform within half a step: its variance is a twelfth of the step's square. Rows that are on the grid of
    the type already have an error of 0 themselves, so it is not measured on them.
    """
    if dtype in _MANTISSA:
        return np.asarray(np.linalg.norm(rows, axis=1) * 2.0 ** -(_MANTISSA[dtype] + 1))
    if dtype not in _BITS or rows.shape[1] % BLOCK:
        return None
    steps = round_nearest(rows, Precision(_BITS[dtype], BLOCK)).scales  # [R, D / 32]
    return np.asarray(_UNEVEN * np.sqrt(BLOCK / 12 * np.square(steps, dtype=np.float64).sum(axis=1)))


def precision_of(dtype: str) -> float:
    """Orders types by how fine they are."""
    return float(_MANTISSA.get(dtype, _BITS.get(dtype, 0) - 2))


def same_up_to_rounding(checkpoint: Checkpoint, pair: Pair) -> Sameness | None:
    """None if there are no two matrices, or they are not even similar."""
    if pair.embed is None or pair.head is None or pair.one_storage or pair.tie is not Tie.TWIN:
        return None
    E, W = checkpoint.tensors[pair.embed.name], checkpoint.tensors[pair.head.name]
    finer, coarser = (W, E) if precision_of(W.dtype) > precision_of(E.dtype) else (E, W)
    apart = allowed = 0.0
    same = True
    for start in range(0, E.shape[0], _ROWS):
        a, b = (checkpoint.rows(t.name, start, start + _ROWS).astype(np.float32) for t in (finer, coarser))
        errors = [rounding_error(t.dtype, a) for t in (finer, coarser)]
        if errors[0] is None or errors[1] is None:
            return Sameness(finer.dtype == coarser.dtype and bool((a == b).all()), finer.name, 0.0)
        expected = np.hypot(errors[0], errors[1])  # [R]
        distance = np.linalg.norm(a - b, axis=1).astype(np.float64)
        same &= bool((distance <= _ROW * (errors[0] + errors[1])).all())
        apart += float((distance**2).sum())
        allowed += float((expected**2).sum())
    ratio = float(np.sqrt(apart / allowed)) if allowed else float(apart > 0)
    return Sameness(same and ratio <= _WHOLE, finer.name, ratio)
