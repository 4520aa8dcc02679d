"""Rounding to a few bits: as the gguf package does it, better where the scale is searched, best where compensated."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from tiebeam.surgery.quantize.error_compensation import Compensation
from tiebeam.surgery.quantize.gguf_codes import packed_blocks
from tiebeam.surgery.quantize.precisions import BY_GGUF, F16, PRECISIONS, Precision
from tiebeam.surgery.quantize.rounding import round_nearest

INTEGERS = [p for p in PRECISIONS if p != F16]


def matrix(rows: int = 200, columns: int = 128, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_t(4, (rows, columns)).astype(np.float32)
    values[0] = 0
    values[1, 3] = 50
    return values


def second_moment(columns: int = 128) -> np.ndarray:
    """Hidden states with a few strong directions, as real ones have."""
    random = np.random.default_rng(5)
    h = random.standard_normal((4096, 16)) @ random.standard_normal((16, columns)) * 3
    h += random.standard_normal(h.shape)
    return h.T @ h / len(h)


@pytest.mark.parametrize("dtype", ["Q8_0", "Q5_0", "Q4_0"])
def test_block_wise_rounding_and_packing_are_those_of_the_gguf_package(dtype: str) -> None:
    kind, precision = gguf.GGMLQuantizationType[dtype], BY_GGUF[dtype]
    expected = gguf.quants.quantize(matrix(), kind)
    rounded = round_nearest(matrix(), precision)
    assert packed_blocks(rounded, precision) == expected.tobytes()
    np.testing.assert_array_equal(rounded.values(), gguf.quants.dequantize(expected, kind))


@pytest.mark.parametrize("dtype", ["Q8_0", "Q5_0", "Q4_0"])
def test_compensated_codes_are_read_by_the_gguf_package(dtype: str) -> None:
    kind, precision = gguf.GGMLQuantizationType[dtype], BY_GGUF[dtype]
    rounded = Compensation(second_moment()).round(matrix(), precision)
    raw = np.frombuffer(packed_blocks(rounded, precision), np.uint8)
    read = gguf.quants.dequantize(raw, kind).reshape(rounded.codes.shape)
    np.testing.assert_array_equal(read, rounded.values())


@pytest.mark.parametrize("precision", INTEGERS, ids=lambda p: p.name)
def test_codes_stay_within_their_bits_and_scales_are_float16(precision: Precision) -> None:
    for rounded in (round_nearest(matrix(), precision), Compensation(second_moment()).round(matrix(), precision)):
        low, high = precision.limits
        assert rounded.codes.min() >= low
        assert rounded.codes.max() <= high
        assert high - low < 1 << precision.bits
        np.testing.assert_array_equal(rounded.scales, rounded.scales.astype(np.float16))
        assert not rounded.values()[0].any(), "a row of zeros stays zero"


@pytest.mark.parametrize("precision", [p for p in INTEGERS if p.bits < 8], ids=lambda p: p.name)
def test_compensation_changes_the_logits_less_though_the_weights_more(precision: Precision) -> None:
    W, C = matrix(), second_moment()

    def change(values: np.ndarray) -> float:
        return float(np.einsum("rd,de,re->", values - W, C, values - W))

    nearest = round_nearest(W, precision).values()
    compensated = Compensation(C).round(W, precision).values()
    assert change(compensated) < 0.6 * change(nearest)


def test_compensation_equals_the_plain_column_by_column_rule() -> None:
    """The slow twin: one row at a time, the inverse updated after each column (Frantar et al., 2022)."""
    W, C, precision = matrix(6), second_moment(), Precision(4)
    ridge = 0.01 * np.trace(C) / 128
    rounded = Compensation(C).round(W, precision)
    for row, step, codes in zip(W.astype(np.float64), rounded.scales[:, 0], rounded.codes, strict=True):
        w, inverse = row.copy(), np.linalg.inv(C + ridge * np.eye(128))
        for j in range(128):
            code = np.clip(np.rint(w[j] / step), *precision.limits)
            assert abs(code - codes[j]) <= 1  # the two round apart where a weight is half way between two codes
            code = codes[j]
            w -= (w[j] - code * step) / inverse[j, j] * inverse[j]
            inverse -= np.outer(inverse[:, j], inverse[j]) / inverse[j, j]


def test_rows_are_rounded_alone_so_a_part_of_a_table_gives_the_same_rows() -> None:
    by, precision = Compensation(second_moment()), Precision(4, 32)
    np.testing.assert_array_equal(by.round(matrix()[50:90], precision).values(),
                                  by.round(matrix(), precision).values()[50:90])  # fmt: skip


def test_with_the_identity_compensation_is_rounding_to_nearest() -> None:
    precision = Precision(4)
    by = Compensation(np.eye(128))
    np.testing.assert_array_equal(by.round(matrix(), precision).codes, round_nearest(matrix(), precision).codes)


@pytest.mark.parametrize(("bits", "less"), [(5, 0.95), (4, 0.9), (3, 0.9)])
def test_a_searched_scale_beats_the_one_that_clips_nothing(bits: int, less: float) -> None:
    W = matrix()[2:]
    high = (1 << (bits - 1)) - 1
    step = np.abs(W).max(axis=1, keepdims=True) / high
    unclipped = np.clip(np.rint(W / step), -high, high) * step
    found = round_nearest(W, Precision(bits)).values()
    assert ((found - W) ** 2).sum() < less * ((unclipped - W) ** 2).sum()


def test_bytes_are_those_of_the_gguf_type() -> None:
    for dtype, precision in BY_GGUF.items():
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]
        assert precision.nbytes(10, 128) == 1280 // block * size
