"""Round the rows of a matrix to a few bits: integer codes times one float16 scale per row or block.

Block-wise codes are those of the gguf package, to the bit. Row-wise, at 5 bits or fewer, the scale is searched: with
few codes it pays to clip the largest values of a row, so that all others get a smaller step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.surgery.quantize.precisions import Precision

Array = NDArray[Any]
_SMALLEST = np.float32(2.0**-24)  # the smallest scale above 0 in float16
_LARGEST = np.float32(65504)
_CLIPPED = (1.0, 0.95, 0.9, 0.84, 0.78, 0.72, 0.66, 0.6, 0.52, 0.44)
"""Scales that are tried, as parts of the one that clips nothing."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """`codes` [R, D] int8 times `scales` [R, groups] float32 (each a float16 number)."""

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]

    def values(self) -> NDArray[np.float32]:  # -> [R, D]
        R, D = self.codes.shape
        out = self.codes.astype(np.float32)
        grouped = out.reshape(R, self.scales.shape[1], -1)
        grouped *= self.scales[:, :, None]
        return out.reshape(R, D)


def round_nearest(rows: Array, precision: Precision) -> Rounded:  # [R, D]
    """Every weight to the nearest code."""
    x = np.ascontiguousarray(rows, np.float32)
    R, D = x.shape
    low, high = precision.limits
    grouped = x.reshape(R, -1, precision.group or D)  # [R, groups, n]
    if precision.group is None:
        scales = full_scales(grouped, precision)
        if precision.bits <= 5:
            scales = best_scales(grouped, scales, precision)
        codes = np.rint(grouped / scales[..., None])
        np.clip(codes, low, high, out=codes)
        return Rounded(codes.astype(np.int8).reshape(R, D), scales)
    scales = _exact_scales(grouped, precision)  # as the gguf package: codes by the scale before it is rounded
    with np.errstate(divide="ignore"):
        inverse = np.where(scales == 0, np.float32(0), 1 / scales)
    codes = grouped * inverse[..., None]
    if precision.bits == 8:
        away = np.copysign(np.floor(np.abs(codes) + np.float32(0.5)), codes)  # half away from zero
        codes = away
    else:
        codes += np.float32(0.5 - low)
        np.trunc(codes, out=codes)
        codes += np.float32(low)
        np.clip(codes, low, high, out=codes)
    with np.errstate(over="ignore"):
        stored = scales.astype(np.float16).astype(np.float32)
    return Rounded(codes.astype(np.int8).reshape(R, D), stored)


def _exact_scales(grouped: Array, precision: Precision) -> Array:  # [R, G, n] -> [R, G]
    if precision.bits == 8:
        return np.asarray(np.abs(grouped).max(axis=-1) / np.float32(127))
    at = np.abs(grouped).argmax(axis=-1)[..., None]
    return np.asarray(np.take_along_axis(grouped, at, axis=-1)[..., 0] / np.float32(precision.limits[0]))


def full_scales(grouped: Array, precision: Precision) -> Array:  # [..., n] -> [...]
    """The float16 scales that clip nothing (signed where the codes are not symmetric)."""
    low, high = precision.limits
    if low == -high:
        scales = np.abs(grouped).max(axis=-1) / np.float32(high)
    else:
        top, bottom = grouped.max(axis=-1), grouped.min(axis=-1)
        scales = np.where(top > -bottom, top, bottom) / np.float32(low)
    return _as_float16(scales)


def best_scales(grouped: Array, scales: Array, precision: Precision) -> Array:  # [..., n], [...] -> [...]
    """Of the scales that clip more or less, those with the smallest squared error."""
    low, high = precision.limits
    best, least = scales, np.full(scales.shape, np.inf, np.float32)
    for part in _CLIPPED:
        tried = _as_float16(scales * np.float32(part))
        error = grouped / tried[..., None]
        codes = np.rint(error)
        np.clip(codes, low, high, out=codes)
        error -= codes
        squared = np.einsum("...n,...n->...", error, error) * tried * tried
        better = squared < least
        best, least = np.where(better, tried, best), np.where(better, squared, least)
    return best


def _as_float16(scales: Array) -> Array:
    """Within the range of float16, and never 0: a row of zeros has the codes 0."""
    sign = np.where(scales < 0, np.float32(-1), np.float32(1))
    return sign * np.clip(np.abs(scales), _SMALLEST, _LARGEST).astype(np.float16).astype(np.float32)
