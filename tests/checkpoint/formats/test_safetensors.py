"""The safetensors header: files of the real library are read, and what it refuses is refused."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tracemalloc
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

import tiebeam
from helpers.mangling import mangled, survives
from tiebeam.checkpoint import open_checkpoint
from tiebeam.checkpoint.dtypes import BITS
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.formats.safetensors import _quick_header, parse_header, read_header
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_DIMENSION

# The names that the Rust serializer takes, for every element type of the format.
SERIALIZED = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
    "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64",
    "U64": "uint64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn_x2",
}  # fmt: skip


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def entry(dtype: str = "F32", shape: Any = (2, 2), begin: Any = 0, end: Any = 16) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def refusal(path: Path) -> str:
    with pytest.raises(UnreadableInput) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rust_reads(path: Path) -> bool:
    try:
        with safetensors.safe_open(path, "np") as file:
            file.keys()
    except safetensors.SafetensorError:
        return False
    return True


# Reading back


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Any names, any element type, any shape of whole bytes, any bytes."""
    found = {}
    for name in draw(st.lists(names.filter(lambda n: n != "__metadata__"), min_size=1, max_size=6, unique=True)):
        dtype = draw(st.sampled_from(sorted(SERIALIZED)))
        shape = draw(shapes)
        if BITS[dtype] < 8:
            shape = (*shape, 2)
        count = prod(shape) * BITS[dtype] // 8
        found[name] = dtype, shape, draw(st.binary(min_size=count, max_size=count))
    return found


every_type_is_written = pytest.mark.skipif(
    not hasattr(safetensors, "TensorSpec"), reason="this safetensors writes fewer element types than it reads"
)


def serialize(content: dict[str, tuple[str, tuple[int, ...], bytes]], metadata: dict[str, str] | None) -> bytes:
    """Written by the real library. Its float4 counts bytes, two values each, in the last dimension."""
    buffers = {name: np.frombuffer(data, np.uint8) for name, (_, _, data) in content.items()}
    specs = {
        name: safetensors.TensorSpec(
            dtype=SERIALIZED[dtype],
            shape=[*shape[:-1], shape[-1] // 2] if dtype == "F4" else list(shape),
            data_ptr=buffers[name].ctypes.data,
            data_len=len(data),
        )
        for name, (dtype, shape, data) in content.items()
    }
    return safetensors.serialize(specs, metadata)


@every_type_is_written
@given(tensors(), st.none() | st.dictionaries(names, names, max_size=3))
@settings(max_examples=150, deadline=None)
def test_files_of_the_real_library_are_read(
    tmp_path_factory: pytest.TempPathFactory, content: dict, metadata: dict | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.safetensors"
    path.write_bytes(serialize(content, metadata))
    checkpoint = open_checkpoint(path)
    assert set(checkpoint.tensors) == set(content)
    assert checkpoint.metadata == (metadata or {})
    for name, (dtype, shape, data) in content.items():
        info = checkpoint.tensors[name]
        assert (info.dtype, info.shape) == (dtype, shape)
        assert checkpoint.read_bytes(name) == data
        assert checkpoint.tensor(name).shape == shape
        if shape and BITS[dtype] >= 8:
            half = shape[0] // 2
            np.testing.assert_array_equal(checkpoint.rows(name, half), checkpoint.tensor(name)[half:])


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float16", "bfloat16", "float64", "int8", "int64", "uint8", "bool", "float8_e4m3fn", "float8_e5m2",
     "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "complex64", "uint16"],
)  # fmt: skip
def test_numbers_equal_those_of_torch(tmp_path: Path, dtype: str) -> None:
    """Every code of the small types, random ones of the others."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    kind = getattr(torch, dtype)
    raw = np.arange(256, dtype=np.uint8) if kind.itemsize == 1 else np.random.default_rng(0).bytes(64 * kind.itemsize)
    codes = torch.frombuffer(bytearray(bytes(raw)), dtype=torch.uint8)
    tensor = (codes % 2).to(kind) if dtype == "bool" else codes.view(kind)
    save_file({"x": tensor.reshape(8, -1)}, tmp_path / "m.safetensors")
    got = open_checkpoint(tmp_path / "m.safetensors").tensor("x")
    exact = tensor.reshape(8, -1) if dtype.startswith(("complex", "int", "uint", "bool", "float64")) else tensor.float()
    np.testing.assert_array_equal(got, exact.reshape(8, -1).numpy())


def small_float(code: int, exponent_bits: int, mantissa_bits: int) -> float:
    """The OCP microscaling formats, straight from their definition: sign, exponent, mantissa; no special values."""
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = (code >> mantissa_bits) % (1 << exponent_bits)
    fraction = (code % (1 << mantissa_bits)) / (1 << mantissa_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    return sign * (fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias))


@pytest.mark.parametrize(
    ("dtype", "bits", "layout"), [("F4", 4, (2, 1)), ("F6_E2M3", 6, (2, 3)), ("F6_E3M2", 6, (3, 2))]
)
def test_values_below_a_byte_unpack_from_the_lowest_bits(
    tmp_path: Path, dtype: str, bits: int, layout: tuple[int, int]
) -> None:
    codes = [(7 * i) % (1 << bits) for i in range(1 << bits)]
    packed = sum(code << (bits * i) for i, code in enumerate(codes)).to_bytes(len(codes) * bits // 8, "little")
    header = {"x": {"dtype": dtype, "shape": [4, len(codes) // 4], "data_offsets": [0, len(packed)]}}
    checkpoint = open_checkpoint(write(tmp_path / "m.safetensors", header, packed))
    expected = np.array([small_float(code, *layout) for code in codes], np.float32).reshape(4, -1)
    np.testing.assert_array_equal(checkpoint.tensor("x"), expected)
    np.testing.assert_array_equal(checkpoint.rows("x", 1, 3), expected[1:3])


def test_four_bits_hold_the_sixteen_known_values(tmp_path: Path) -> None:
    packed = bytes(range(0x10, 0x100, 0x22))  # 0x10, 0x32, … 0xfe: the codes 0, 1, 2, … 15
    header = {"x": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]}}
    got = open_checkpoint(write(tmp_path / "m.safetensors", header, packed)).tensor("x")
    half = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    np.testing.assert_array_equal(got, [*half, *(-value for value in half)])


def test_aliases_in_the_metadata_are_kept(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import torch
    from safetensors.torch import save_model

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(4, 2)
            self.head = torch.nn.Linear(2, 4, bias=False)
            self.head.weight = self.embed.weight

    save_model(Tied(), str(tmp_path / "model.safetensors"))
    checkpoint = open_checkpoint(tmp_path)
    assert {*checkpoint.aliases, *checkpoint.aliases.values()} == {"embed.weight", "head.weight"}
    assert set(checkpoint.aliases.values()) == set(checkpoint.tensors)


def test_empty_tensors_are_read(tmp_path: Path) -> None:
    header = {"none": entry(shape=(0, 5), end=0), "some": entry(), "last": entry(shape=(3, 0), begin=16)}
    checkpoint = open_checkpoint(write(tmp_path / "m.safetensors", header, bytes(16)))
    assert checkpoint.tensor("none").shape == (0, 5)
    assert checkpoint.tensor("last").shape == (3, 0)
    assert checkpoint.rows("last", 1, 2).shape == (1, 0)


def test_header_longer_than_one_read(tmp_path: Path) -> None:
    header = {f"tensor.{i}": entry(begin=16 * i, end=16 * i + 16) for i in range(3000)}
    checkpoint = open_checkpoint(write(tmp_path / "m.safetensors", header, bytes(16 * 3000)))
    assert len(checkpoint.tensors) == 3000
    assert checkpoint.tensors["tensor.2999"].end == (tmp_path / "m.safetensors").stat().st_size


@every_type_is_written
@given(tensors(), st.none() | st.dictionaries(names, names, max_size=3))
@settings(max_examples=100, deadline=None)
def test_fast_parser_agrees_with_the_slow_one_or_declines(content: dict, metadata: dict | None) -> None:
    raw = serialize(content, metadata)
    (length,) = struct.unpack_from("<Q", raw)
    place = ("f", 8 + length, len(raw))
    quick, slow = _quick_header(raw[8 : 8 + length], *place), parse_header(json.loads(raw[8 : 8 + length]), *place)
    assert quick in (None, slow)


def test_ordinary_header_is_parsed_by_the_fast_parser() -> None:
    header = {"__metadata__": {"format": "pt"}, "a": entry(), "b": entry("BF16", (4, 4), 16, 48)}
    raw = json.dumps(header).encode() + b"   "
    assert _quick_header(raw, "f", 8 + len(raw), 8 + len(raw) + 48) is not None


def test_a_file_whose_size_does_not_bound_its_dimensions_is_left_to_the_parser_that_checks_each() -> None:
    for size, quick in ((MAX_DIMENSION // 8, True), (MAX_DIMENSION // 8 + 8, False)):
        raw = json.dumps({"x": {"dtype": "U8", "shape": [size - 4096], "data_offsets": [0, size - 4096]}}).encode()
        assert (_quick_header(raw, "f", 4096, size) is not None) is quick
        assert parse_header(json.loads(raw), "f", 4096, size).tensors["x"].shape == (size - 4096,)


# Refusing


@pytest.mark.parametrize("size", range(9))
def test_file_shorter_than_the_length_field_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(bytes([8, 0, 0, 0, 0, 0, 0, 0, 0])[:size])
    assert "m.safetensors is" in refusal(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", {"a": entry()}, bytes(16))
    raw = path.read_bytes()
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        refusal(path)
    path.write_bytes(raw + b"\0")
    assert "1 bytes after its last tensor" in refusal(path)


@pytest.mark.parametrize("length", [100_000_001, 1 << 32, (1 << 63) - 1, (1 << 64) - 1])
def test_header_length_above_the_limit_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    assert "exceeds the limit of 100,000,000" in refusal(path)


def test_header_length_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", 99_999_999) + b"{}")
    assert "is truncated: its header needs 100,000,007 bytes, the file has 10" in refusal(path)


REST = json.dumps({"a": entry()}).encode()[1:]
REFUSED = {
    "overlap": ({"a": entry(), "b": entry(begin=8, end=24)}, 24, "overlaps"),
    "same range": ({"a": entry(), "b": entry()}, 16, "overlaps"),
    "gap": ({"a": entry(), "b": entry(begin=20, end=36)}, 36, "gap"),
    "negative range": ({"a": entry(shape=(0,), begin=4, end=0)}, 4, "negative range 4..0"),
    "negative begin": ({"a": entry(begin=-16, end=0)}, 0, "negative range"),
    "negative shape": ({"a": entry(shape=(-2, -2))}, 16, "no tensor can have"),
    "past the end": ({"a": entry(shape=(4, 2), end=32)}, 16, "truncated: its tensors need"),
    "wrong size": ({"a": entry(shape=(3, 2))}, 16, "its range holds 16 bytes"),
    "half bytes": ({"a": entry("F4", (3,), 0, 1)}, 1, "its range holds 1 bytes"),
    "unknown type": ({"a": entry("F7")}, 16, "unknown element type 'F7'"),
    "type is a list": ({"a": {"dtype": ["F32"], "shape": [2, 2], "data_offsets": [0, 16]}}, 16, "malformed"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 16]}}, 16, "malformed"),
    "shape is text": ({"a": {"dtype": "F32", "shape": "22", "data_offsets": [0, 16]}}, 16, "no tensor can have"),
    "shape is an object": ({"a": {"dtype": "F32", "shape": {}, "data_offsets": [0, 4]}}, 4, "no tensor can have"),
    "float shape": ({"a": entry(shape=(2.0, 2))}, 16, "no tensor can have"),
    "true shape": ({"a": entry(shape=(True, 4))}, 16, "no tensor can have"),
    "float offset": ({"a": entry(begin=0.0)}, 16, "malformed"),
    "false offset": ({"a": entry(begin=False)}, 16, "malformed"),
    "null offset": ({"a": entry(end=None)}, 16, "malformed"),
    "three offsets": ({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 8, 16]}}, 16, "malformed"),
    "entry is a list": ({"a": [1]}, 0, "malformed"),
    "entry is null": ({"a": None}, 0, "malformed"),
    "a list in the shape": ({"a": entry(shape=([0], 1 << 28), end=8)}, 8, "no tensor can have"),
    "text in the shape": ({"a": entry(shape=("2", 1 << 40), end=8)}, 8, "no tensor can have"),
    "null in the shape": ({"a": entry(shape=(None,))}, 16, "no tensor can have"),
    "product beyond 64 bits": ({"a": entry("I32", (2, (1 << 64) - 2))}, 16, "no tensor can have"),
    "bytes beyond 64 bits": ({"a": entry("I32", (2, (1 << 63) - 1))}, 16, "no tensor can have"),
    "two dimensions of 10**2000": ({"a": entry(shape=(10**2000, 10**2000))}, 16, "no tensor can have"),
    "9,000 dimensions of 10**1000": ({"a": entry(shape=(10**1000,) * 9000)}, 16, "no tensor can have"),
    "offset of 4,000 digits": ({"a": entry(end=10**4000)}, 16, "its range holds"),
    "ten tensors of one range": ({f"weight_{i}": entry() for i in range(10)}, 16, "overlaps"),
    "huge dimension": ({"a": entry(shape=(0, 1 << 62), end=0)}, 0, "no tensor can have"),
    "metadata is a list": ({"__metadata__": [1], "a": entry()}, 16, "__metadata__"),
    "metadata of numbers": ({"__metadata__": {"x": 1}, "a": entry()}, 16, "__metadata__"),
    "metadata of lists": ({"__metadata__": {"x": ["s"]}, "a": entry()}, 16, "__metadata__"),
    "metadata is false": ({"__metadata__": False, "a": entry()}, 16, "__metadata__"),
    "metadata is 0": ({"__metadata__": 0, "a": entry()}, 16, "__metadata__"),
    "metadata is empty text": ({"__metadata__": "", "a": entry()}, 16, "__metadata__"),
    "metadata is an empty list": ({"__metadata__": [], "a": entry()}, 16, "__metadata__"),
    "NaN in an unknown field": ({"a": {**entry(), "x": float("nan")}}, 16, "not a finite number"),
    "infinity in an unknown field": ({"a": {**entry(), "x": float("inf")}}, 16, "not a finite number"),
    "1e999 in an unknown field": (b'{"a":{"x":1e999,' + REST[6:], 16, "not a finite number"),
    "a byte order mark": (b"\xef\xbb\xbf{" + REST, 16, "does not start with '{'"),
    "a form feed before it": (b"\x0c{" + REST, 16, "does not start with '{'"),
    "nothing": ({}, 0, "no tensors"),
    "a list": (b"[1, 2]", 0, "does not start with '{'"),
    "cut JSON": (b"{" + REST[:-1], 16, "not valid JSON"),
    "trailing text": (json.dumps({"a": entry()}).encode() + b"x", 16, "not valid JSON"),
    "not UTF-8": (b'{"\xff": 1}', 0, "not UTF-8"),
    "unpaired surrogate": (json.dumps({"\ud800": entry()}).encode(), 16, "unpaired surrogate"),
    "deep": (b'{"a":' * 100_000, 0, "too deeply"),
    "deep lists": (b'{"a":' + b"[" * 100_000, 0, "too deeply"),
    "long number": (b'{"a": {"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,16]}}', 16, "digits"),
    "tensor twice": (b'{"a":%b,"a":%b}' % (2 * (json.dumps(entry()).encode(),)), 16, "defines 'a' twice"),
    "tensor twice, once escaped": (b'{"a":%b,"\\u0061":%b}' % (2 * (json.dumps(entry()).encode(),)), 16, "twice"),
    "key twice": (b'{"a":{"dtype":"F32","dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}', 16, "'dtype' twice"),
    "metadata twice": (b'{"__metadata__":{"x":"1"},"__metadata__":{},' + REST, 16, "'__metadata__' twice"),
    "note twice": (b'{"__metadata__":{"x":"1","x":"2"},' + REST, 16, "'x' twice"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_inconsistent_header_is_refused(tmp_path: Path, case: str) -> None:
    header, data, message = REFUSED[case]
    path = write(tmp_path / "m.safetensors", header, bytes(data))
    assert message in refusal(path)
    # The real library does not look for a key given twice; a size that NumPy cannot hold does not trouble it.
    if "twice" not in case and case not in ("nothing", "huge dimension"):
        assert not rust_reads(path)


READ = {
    "white space before and after": b" \t\r\n{" + REST + b" \n\t\r ",
    "metadata is null": {"__metadata__": None, "a": entry()},
    "an unknown field": {"a": {**entry(), "x": [1.5, {"y": None}]}},
    "no dimensions": {"a": entry("F32", (), 0, 4), "b": entry("F32", (3,), 4, 16)},
}


@pytest.mark.parametrize("case", READ)
def test_unusual_but_valid_header_is_read(tmp_path: Path, case: str) -> None:
    path = write(tmp_path / "m.safetensors", READ[case], bytes(16))
    assert rust_reads(path)
    checkpoint = open_checkpoint(path)
    assert sum(info.nbytes for info in checkpoint.tensors.values()) == 16


def test_header_that_multiplies_a_list_takes_no_memory(tmp_path: Path) -> None:
    """82 bytes that once took 2.1 GB: Python's [0] * 268435456 is a list."""
    header = b'{"a":{"dtype":"F32","shape":[[0],268435456],"data_offsets":[0,8]}}'
    path = write(tmp_path / "m.safetensors", header, bytes(8))
    assert path.stat().st_size == 82
    tracemalloc.start()
    try:
        assert "no tensor can have" in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_header_with_too_many_values_is_refused_without_parsing(tmp_path: Path) -> None:
    """Peak memory of a fresh process: 90 MB of brackets would be 4 GB of lists."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", 90_000_000) + b'{"a":[' + b"[]," * 29_999_996 + b"[]]}  ")
    sparse = tmp_path / "sparse.safetensors"
    with sparse.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_000) + b"{")
        file.truncate(1 << 40)
    script = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from tiebeam.checkpoint import open_checkpoint\n"
        "from tiebeam.errors import UnreadableInput\n"
        "for path in sys.argv[1:]:\n"
        "    try: open_checkpoint(path)\n"
        "    except UnreadableInput as error: print(error)\n"
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) // 1024)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(path), str(sparse)],
        env={"PYTHONPATH": str(Path(tiebeam.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second, megabytes = run.stdout.splitlines()
    assert "more values than the limit of 4,000,000" in first
    assert "not valid JSON" in second
    assert int(megabytes) < 600


def test_damaged_files_end_in_a_result_or_in_one_sentence(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "a": entry(), "b": entry("BF16", (4, 4), 16, 48)}
    header |= {"c": entry("F4", (4,), 48, 50), "d": entry("F8_E8M0", (), 50, 51), "e": entry("F64", (0, 3), 51, 51)}
    raw = write(tmp_path / "m.safetensors", header, bytes(range(51))).read_bytes()
    assert {survives(tmp_path / "m.safetensors", broken) for broken in mangled(raw, 2400)} == {True, False}


def test_only_the_header_is_read(tmp_path: Path) -> None:
    """Opening a terabyte of weights reads only the header."""
    size = 1 << 40
    path = write(tmp_path / "m.safetensors", {"a": entry("U8", (size,), 0, size)})
    begin = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(begin + size)
    header = read_header(LocalFiles(tmp_path), "m.safetensors")
    assert header.tensors["a"].nbytes == size
    assert open_checkpoint(path).rows("a", size - 5, size).tolist() == [0] * 5
