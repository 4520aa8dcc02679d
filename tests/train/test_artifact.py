"""The packed artifact round-trips to the requested precision, and refuses damaged files."""

import contextlib
import json
import os
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.train.artifact import MAGIC, MAGIC_2, pack, quantize, stored_size
from tiebeam.train.unpack_artifact import open_artifact, unpack

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
        pack(tensors(), {}, TABLES, "int9")


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


def artifact(tmp_path, body, method="zlib", **header):
    header = {"files": {}, "compression": method, "size": len(body), **header}
    raw = json.dumps(header).encode()
    return write(tmp_path, MAGIC + struct.pack("<Q", len(raw)) + raw + zlib.compress(body, 9))


def entry(name="a", shape=(2, 3), precision="fp32", at=(0, 24)):
    return {"name": name, "shape": list(shape), "precision": precision, "range": list(at)}


def test_a_body_larger_than_declared_is_refused(tmp_path):
    with pytest.raises(UnreadableInput, match="longer than its tensors"):
        unpack(artifact(tmp_path, bytes(50_000_000), tensors=[entry()], size=24))
    with pytest.raises(UnreadableInput, match="take 24 bytes, and the header declares 10"):
        unpack(artifact(tmp_path, bytes(24), tensors=[entry()], size=10))


def test_a_truncated_body_is_refused_at_every_length(tmp_path):
    for method in ("zlib", "zstd"):
        raw = pack({"a": np.arange(6, dtype=np.float32).reshape(2, 3)}, {}, TABLES)
        if method == "zstd":
            import zstandard

            header = json.dumps({"tensors": [entry()], "files": {}, "compression": "zstd", "size": 24}).encode()
            raw = MAGIC + struct.pack("<Q", len(header)) + header + zstandard.compress(bytes(24))
        unpack(write(tmp_path, raw))
        for length in range(len(raw)):
            with contextlib.suppress(UnreadableInput):
                unpack(write(tmp_path, raw[:length]))
                assert method == "zstd"  # only the checksum is missing
                assert length >= len(raw) - 4


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([entry(name=7)], "no usable name"),
        ([entry(name=["a"])], "no usable name"),
        ([entry(name="")], "no usable name"),
        ([entry(name="__metadata__")], "no usable name"),
        ([entry(name="\ud800")], "unpaired surrogate"),
        ([entry(), entry(at=(24, 48))], "two tensors called 'a'"),
        ([entry(), entry("b")], "'b' is not at bytes 24 to 48"),
        ([entry(at=(0, 12))], "'a' is not at bytes 0 to 24"),
        ([entry(at=(0, 24, 24))], "'a' is not at"),
        ([entry(shape=(2, -3))], "a shape that no fp32 tensor can have"),
        ([entry(shape=(2, True))], "a shape that"),
        ([entry(shape=(2, 3.0))], "a shape that"),
        ([entry(shape=([0], 2**28))], "a shape that"),
        ([entry(shape=(0, 2**60))], "a shape that"),
        ([entry(shape=(10**4000,))], "a shape that"),
        ([entry(shape=(6,), precision="int8")], "a shape that no int8 tensor can have"),
        ([entry(shape=(24, 0), precision="int8")], "a shape that"),
        ([entry(precision="int5")], "unknown precision"),
        ([entry(precision=["int8"])], "unknown precision"),
        (["a"], "no usable name"),
        ({"a": entry()}, "no list of tensors"),
        (None, "no list of tensors"),
    ],
)
def test_a_malformed_entry_is_refused_before_decompressing(tmp_path, tensors, message):
    with pytest.raises(UnreadableInput, match=message) as raised:
        open_artifact(artifact(tmp_path, bytes(48), tensors=tensors))
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("files", [["config.json"], {"config.json": 7}, {"config.json": None}, None])
def test_files_that_are_not_texts_are_refused(tmp_path, files):
    with pytest.raises(UnreadableInput, match="not texts by name"):
        open_artifact(artifact(tmp_path, b"", tensors=[], files=files))


def test_a_small_file_that_declares_gigabytes_is_refused(tmp_path):
    size = 4 << 30
    path = artifact(tmp_path, bytes(1 << 20), tensors=[entry(shape=(1 << 20, 1 << 10), at=(0, size))], size=size)
    with pytest.raises(UnreadableInput, match="exceeds the limit of 20 times"):
        open_artifact(path)


@pytest.mark.parametrize(("shape", "precision"), [((1 << 10, 20 << 10), "int8"), ((10 << 20,), "fp16")])
def test_memory_does_not_depend_on_the_size_of_a_tensor(tmp_path, shape, precision):
    size = stored_size(precision, shape)
    path = artifact(tmp_path, bytes(size), tensors=[entry(shape=shape, precision=precision, at=(0, size))])
    tracemalloc.start()
    try:
        open_artifact(path).write_safetensors(tmp_path / "out.safetensors")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "out.safetensors").stat().st_size > 4 * size / 2 - 8192
    assert peak < 40 << 20


def test_what_is_written_equals_what_is_read(tmp_path):
    from safetensors.numpy import load_file

    path = write(tmp_path, pack(tensors(), {}, TABLES, "int6", "int8"))
    open_artifact(path).write_safetensors(tmp_path / "out.safetensors")
    written, read = load_file(tmp_path / "out.safetensors"), unpack(path).tensors
    assert list(written) == list(read)
    for name, tensor in read.items():
        np.testing.assert_array_equal(written[name], tensor)


def test_a_header_that_could_not_be_read_back_is_not_written():
    with pytest.raises(BadRequest, match="smaller tokenizer"):
        pack({}, {"tokenizer.json": "x" * (16 << 20)}, TABLES)


def test_what_is_not_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "missing"):
        with pytest.raises(UnreadableInput, match=r"not a file|does not exist"):
            open_artifact(path)


def test_a_file_of_version_1_is_still_written_and_read_and_has_no_newer_precision(tmp_path):
    old = pack(tensors(), {}, TABLES, "int6", "int8")
    assert old.startswith(MAGIC)
    assert unpack(write(tmp_path, old)).tensors.keys() == tensors().keys()
    new = pack(tensors(), {}, TABLES, "int6", "int4")
    assert new.startswith(MAGIC_2)
    unpack(write(tmp_path, new))
    with pytest.raises(UnreadableInput, match="unknown precision"):
        unpack(write(tmp_path, MAGIC + new[8:]))
    with pytest.raises(UnreadableInput, match="magic"):
        unpack(write(tmp_path, b"TIEBEAM\x03" + new[8:]))


def test_given_codes_are_stored_as_they_are(tmp_path):
    from tiebeam.surgery.quantize.rounding import Rounded

    table = Rounded(np.arange(300 * 64, dtype=np.int8).reshape(300, 64), np.full((300, 1), 0.5, np.float32))
    raw = pack(tensors(), {}, TABLES, "int8", "mixed", {"table.weight": table})
    assert raw.startswith(MAGIC_2)
    np.testing.assert_array_equal(unpack(write(tmp_path, raw)).tensors["table.weight"], table.values())


def test_the_table_is_rounded_as_quantize_rounds_it(tmp_path):
    from tiebeam.surgery.quantize.precisions import Precision
    from tiebeam.surgery.quantize.rounding import round_nearest

    for bits in (8, 5, 3):
        found = unpack(write(tmp_path, pack(tensors(), {}, TABLES, "int8", f"int{bits}"))).tensors["table.weight"]
        np.testing.assert_array_equal(found, round_nearest(tensors()["table.weight"], Precision(bits)).values())
