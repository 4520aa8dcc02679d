"""The packed artifact round-trips to the requested precision, and refuses damaged files."""

import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.train.artifact import MAGIC, pack, quantize, unpack

TABLES = frozenset({"table.weight"})


def tensors(seed=0):
    random = np.random.default_rng(seed)
    return {
        "table.weight": random.standard_normal((300, 64)).astype(np.float32),
        "big.weight": random.standard_normal((300, 256)).astype(np.float32),
        "small.weight": random.standard_normal((8, 8)).astype(np.float32),
        "gain": random.standard_normal(64).astype(np.float32),
        "scalar": np.float32(3.5).reshape(()),
    }


def write(tmp_path, raw):
    (tmp_path / "a.tbp").write_bytes(raw)
    return tmp_path / "a.tbp"


@pytest.mark.parametrize(("precision", "steps"), [("int8", 127), ("int7", 63), ("int6", 31)])
def test_quantization_error_is_at_most_half_a_step(tmp_path, precision, steps):
    before = tensors()
    after = unpack(write(tmp_path, pack(before, {}, TABLES, precision, precision))).tensors
    for name in ("big.weight", "table.weight"):
        step = np.abs(before[name]).max(axis=1, keepdims=True) / steps
        assert np.all(np.abs(after[name] - before[name]) <= 0.51 * step + 1e-3 * np.abs(before[name]))


def test_small_matrices_and_vectors_keep_their_precision(tmp_path):
    before = tensors()
    after = unpack(write(tmp_path, pack(before, {}, TABLES))).tensors
    np.testing.assert_array_equal(after["gain"], before["gain"])
    np.testing.assert_array_equal(after["scalar"], before["scalar"])
    np.testing.assert_allclose(after["small.weight"], before["small.weight"], rtol=1e-3, atol=1e-6)


def test_the_embedding_has_its_own_precision(tmp_path):
    before = tensors()
    fine = unpack(write(tmp_path, pack(before, {}, TABLES, "int6", "fp16"))).tensors["table.weight"]
    rough = unpack(write(tmp_path, pack(before, {}, TABLES, "int6", "int6"))).tensors["table.weight"]
    error = [np.abs(t - before["table.weight"]).max() for t in (fine, rough)]
    assert error[0] < 0.1 * error[1]


def test_fewer_bits_make_a_smaller_file():
    sizes = [len(pack(tensors(), {}, TABLES, p, p)) for p in ("fp16", "int8", "int7", "int6")]
    assert sizes == sorted(sizes, reverse=True)


def test_files_round_trip(tmp_path):
    files = {"config.json": '{"a": "ü"}', "tokenizer.json": "{}"}
    assert unpack(write(tmp_path, pack(tensors(), files, TABLES))).files == files


@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, (5, 17), elements=st.floats(-1e4, 1e4, width=32)))
def test_quantization_never_produces_nan_or_infinity(matrix):
    codes, scale = quantize(matrix, 127)
    back = codes.astype(np.float32) * scale.astype(np.float32)[:, None]
    assert np.isfinite(back).all()
    assert np.abs(back - matrix).max() <= np.abs(matrix).max() * 0.02 + 2.0**-14


def test_a_model_that_diverged_is_not_packed():
    broken = tensors() | {"gain": np.full(64, np.nan, np.float32)}
    with pytest.raises(BadRequest, match="not finite"):
        pack(broken, {}, TABLES)


def test_an_unknown_precision_is_refused_with_the_known_ones():
    with pytest.raises(BadRequest, match="int6"):
        pack(tensors(), {}, TABLES, "int5")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"not an artifact at all",
        MAGIC,
        MAGIC + struct.pack("<Q", 1 << 60),
        MAGIC + struct.pack("<Q", 2) + b"{}",
        MAGIC + struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc",
    ],
)
def test_garbage_is_refused(tmp_path, raw):
    with pytest.raises(UnreadableInput):
        unpack(write(tmp_path, raw))


def test_flipped_bytes_give_a_result_or_unreadable_input(tmp_path):
    raw = bytearray(pack(tensors(), {"config.json": "{}"}, TABLES))
    random = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(raw)
        for at in random.integers(0, len(raw), random.integers(1, 4)):
            damaged[at] ^= 1 << random.integers(8)
        with contextlib.suppress(UnreadableInput):
            unpack(write(tmp_path, bytes(damaged[: random.integers(len(raw) // 2, len(raw) + 1)])))


def test_a_body_larger_than_declared_is_refused(tmp_path):
    import zlib

    bomb = zlib.compress(bytes(50_000_000), 9)
    header = json.dumps({"tensors": [], "files": {}, "compression": "zlib", "size": 10}).encode()
    with pytest.raises(UnreadableInput, match="declares 10"):
        unpack(write(tmp_path, MAGIC + struct.pack("<Q", len(header)) + header + bomb))
