"""Round a head so that its logits change least, not its weights: GPTQ's rule, with one Cholesky factor for all rows.

A row w of the head is used as w.h. If it becomes w + e, the mean square of the change over real text is e C e^T, with C
the second moment of the final hidden states. Columns are rounded one after the other, and the error of each is
compensated in the columns that are not rounded yet: with U^T U = C^-1 (U upper triangular), column j's error divided
by U_jj, times row j of U, is subtracted from the rest. Rows do not depend on each other, so that any part of a large
table can be rounded alone. The embedding is looked up, not multiplied: its metric is the identity, and rounding to
nearest is best already. A tied matrix has both duties, so its C is blended with more of the identity.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tiebeam.surgery.quantize.precisions import BLOCK, Precision
from tiebeam.surgery.quantize.rounding import Array, Rounded, best_scales, full_scales

RIDGE_OF_HEAD = 0.01
RIDGE_OF_TIED = 0.3
_ROWS = 2048  # rounded at a time; they stay in the cache


class Compensation:
    """Rounds rows in the metric of `second_moment` [D, D], blended with `ridge` of its mean variance."""

    def __init__(self, second_moment: Array, ridge: float = RIDGE_OF_HEAD) -> None:
        self._C, self._ridge = np.asarray(second_moment, np.float64), ridge

    @cached_property
    def _factor(self) -> Array:  # [D, D], upper triangular
        D = len(self._C)
        variance = np.trace(self._C) / D or 1.0
        blend = self._C + self._ridge * variance * np.eye(D)
        factor = np.linalg.cholesky(np.linalg.inv(blend)).T
        return np.ascontiguousarray(factor, np.float32)

    def round(self, rows: Array, precision: Precision) -> Rounded:  # [R, D]
        parts = [self._round(rows[at : at + _ROWS], precision) for at in range(0, len(rows), _ROWS)]
        return Rounded(np.concatenate([p.codes for p in parts]), np.concatenate([p.scales for p in parts]))

    def _round(self, rows: Array, precision: Precision) -> Rounded:
        U = self._factor
        X = np.array(rows.T, np.float32, order="C")  # [D, R], changed in place
        D, R = X.shape
        low, high = precision.limits
        codes = np.empty((D, R), np.int8)
        scales = np.empty((D // BLOCK if precision.group else 1, R), np.float32)
        if precision.group is None:
            scales[0] = best_scales(X.T, full_scales(X.T, precision), precision)
        errors = np.empty((BLOCK, R), np.float32)
        code, change = np.empty(R, np.float32), np.empty((BLOCK, R), np.float32)
        for begin in range(0, D, BLOCK):
            end = min(begin + BLOCK, D)
            if precision.group is not None:
                block = X[begin:end].T
                scales[begin // BLOCK] = best_scales(block, full_scales(block, precision), precision)
            step = scales[begin // BLOCK if precision.group else 0]
            for j in range(begin, end):
                np.divide(X[j], step, out=code)
                np.rint(code, out=code)
                np.clip(code, low, high, out=code)
                codes[j] = code
                code *= step
                error = errors[j - begin]
                np.subtract(X[j], code, out=error)
                error /= U[j, j]
                rest = end - j - 1
                np.multiply(U[j, j + 1 : end, None], error, out=change[:rest])
                X[j + 1 : end] -= change[:rest]
            X[end:] -= U[begin:end, end:].T @ errors[: end - begin]
        return Rounded(np.ascontiguousarray(codes.T), np.ascontiguousarray(scales.T))
