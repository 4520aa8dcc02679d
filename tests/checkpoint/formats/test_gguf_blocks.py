"""Our dequantisation of GGUF blocks gives the same bits as the gguf package."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as reference

from tiebeam.checkpoint import gguf_blocks


@pytest.mark.parametrize("dtype", sorted(gguf_blocks._DECODERS))
def test_random_blocks_decode_to_the_bits_of_the_gguf_package(dtype: str) -> None:
    """Random bytes: every code, every scale, infinite and NaN scales too."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[dtype]]
    assert gguf_blocks._DECODERS[dtype][:2] == (block, size)
    raw = np.random.default_rng(0).integers(0, 256, (700, size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = reference(raw.reshape(-1), GGMLQuantizationType[dtype])
    np.testing.assert_array_equal(gguf_blocks.dequantize(dtype, raw.tobytes()), expected)


def test_a_tensor_larger_than_one_piece_is_dequantised_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = np.random.default_rng(1).integers(0, 256, (37, 20), dtype=np.uint8)
    monkeypatch.setattr(gguf_blocks, "_PIECE", 5 * 32)
    with np.errstate(all="ignore"):
        expected = reference(raw.reshape(-1), GGMLQuantizationType.Q4_1)
    out = np.zeros((37, 32), np.float32)
    gguf_blocks.dequantize("Q4_1", raw.tobytes(), out)
    np.testing.assert_array_equal(out.reshape(-1), expected)
