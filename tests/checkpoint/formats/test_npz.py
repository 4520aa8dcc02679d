"""npz files are read as NumPy reads them, without unpickling; damaged ones are refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from helpers.mangling import mangled, survives
from tiebeam.checkpoint import Checkpoint, open_checkpoint, tensors
from tiebeam.errors import NumbersNotRead, UnreadableInput

SPELLED = {
    "?": "BOOL", "i1": "I8", "u1": "U8", "<i2": "I16", "<u2": "U16", "<i4": "I32", "<u4": "U32", "<i8": "I64",
    "<u8": "U64", "<f2": "F16", "<f4": "F32", "<f8": "F64", "<c8": "C64", "<c16": "C128",
}  # fmt: skip


def assert_reads_as_numpy(checkpoint: Checkpoint, path: Path) -> None:
    with np.load(path) as arrays:
        assert set(arrays.files) == set(checkpoint.tensors)
        for name in arrays.files:
            np.testing.assert_array_equal(checkpoint.tensor(name), arrays[name], strict=True)


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name, raw in members.items():
            out.writestr(f"{name}.npy", raw)
    return path


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.mark.parametrize("dtype", SPELLED)
def test_every_numeric_type_reads_as_numpy_reads_it(tmp_path: Path, dtype: str) -> None:
    array = np.arange(24).astype(dtype).reshape(6, 4)
    np.savez(tmp_path / "x.npz", a=array)
    checkpoint = open_checkpoint(tmp_path / "x.npz")
    assert checkpoint.tensors["a"].dtype == SPELLED[dtype]
    assert_reads_as_numpy(checkpoint, tmp_path / "x.npz")


arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float16, np.int64, np.bool_, np.complex64]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0/\\", exclude_categories=["C"]), min_size=1)


@settings(max_examples=80, deadline=None)
@given(
    held=st.dictionaries(names.filter(lambda name: name != "file"), arrays, min_size=1, max_size=4),
    fortran=st.booleans(),
    deflated=st.booleans(),
)
def test_whatever_numpy_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, held: dict[str, Any], fortran: bool, deflated: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.npz"
    if fortran:
        held = {name: np.asfortranarray(array) for name, array in held.items()}
    (np.savez_compressed if deflated else np.savez)(path, **held)
    assert_reads_as_numpy(open_checkpoint(path), path)


def test_column_major_arrays_keep_their_bytes_and_get_strides(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    np.savez(tmp_path / "x.npz", a=array)
    checkpoint = open_checkpoint(tmp_path / "x.npz")
    assert checkpoint.tensors["a"].strides == (1, 2)
    assert checkpoint.read_bytes("a") == array.tobytes("F")
    np.testing.assert_array_equal(checkpoint.rows("a", 1, 2), array[1:2])


def test_rows_of_a_compressed_array_are_inflated_on_request(tmp_path: Path) -> None:
    array = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    np.savez_compressed(tmp_path / "x.npz", table=array)
    checkpoint = open_checkpoint(tmp_path / "x.npz")
    assert checkpoint.tensors["table"].packing == "table.npy"
    np.testing.assert_array_equal(checkpoint.rows("table", 700, 703), array[700:703])
    np.testing.assert_array_equal(checkpoint.rows("table", 3, 5), array[3:5])


class Command:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, (f"touch {self.canary}",)


def test_compressed_array_in_columns_is_not_inflated_above_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "a.npz", w=np.asfortranarray(np.zeros((50, 30), np.float32)))
    assert open_checkpoint(tmp_path / "a.npz").rows("w", 3, 5).shape == (2, 30)
    monkeypatch.setattr(tensors, "MAX_INFLATED_STRIDED", 5999)
    with pytest.raises(NumbersNotRead, match="6,000 bytes, compressed and not in row-major order"):
        open_checkpoint(tmp_path / "a.npz").rows("w", 3, 5)


def test_arrays_without_numbers_are_skipped_and_objects_never_unpickled(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    objects = np.array([Command(canary)], dtype=object)
    np.savez(tmp_path / "x.npz", objects=objects, words=np.array(["a", "b"]), weight=np.ones((2, 2)))
    checkpoint = open_checkpoint(tmp_path / "x.npz")
    assert list(checkpoint.tensors) == ["weight"]
    assert checkpoint.notes == (
        "2 of the arrays in x.npz were skipped: 'objects' holds Python objects, which would have to be unpickled",
    )
    assert not canary.exists()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([None]), "holds Python objects"),
        (np.array(["text"]), "holds <U4, which is not a supported number type"),
        (np.zeros(2, "V2"), "perhaps bfloat16"),
        (np.zeros(2, "M8[s]"), "not a supported number type"),
        (np.zeros(2, [("a", "f4"), ("b", "f4")]), "not a supported number type"),
        (np.zeros(2, np.longdouble), "not a supported number type"),
        (np.zeros(2, ">f4"), "big-endian; save it as little-endian"),
    ],
)
def test_file_without_numeric_arrays_says_why(tmp_path: Path, array: Any, message: str) -> None:
    np.savez(tmp_path / "x.npz", a=array)
    with pytest.raises(UnreadableInput, match=message):
        open_checkpoint(tmp_path / "x.npz")


def test_members_that_are_not_arrays_are_ignored(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as out:
        out.writestr("a.npy", npy(np.ones(3)))
        out.writestr("readme.txt", "text")
    assert list(open_checkpoint(tmp_path / "x.npz").tensors) == ["a"]


def header(text: str, version: bytes = b"\x01\x00", length: int | None = None) -> bytes:
    raw = text.encode() + b"\n"
    size = len(raw) if length is None else length
    return b"\x93NUMPY" + version + size.to_bytes(2 if version == b"\x01\x00" else 4, "little") + raw


@pytest.mark.parametrize(
    "member",
    [
        b"",
        b"\x93NUMP",
        b"not an array at all",
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", b"\x09\x00"),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", b"\x03\x00"),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", length=60_000),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", b"\x02\x00", length=2**32 - 1),
        header("{'descr': '<f4', 'fortran_order': False}"),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': 'x'}"),
        header("{'descr': 'no such type', 'fortran_order': False, 'shape': ()}"),
        header("__import__('os').system('true')"),
        header("(" * 9000),
        header("-" * 9000 + "1"),
        header("{" * 3000 + "}" * 3000),
    ],
)
def test_member_with_a_broken_header_is_named(tmp_path: Path, member: bytes) -> None:
    with pytest.raises(UnreadableInput, match="'a' does not start with an"):
        open_checkpoint(archive(tmp_path / "x.npz", a=member))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("(3,)", "takes 12 bytes; it has 8"),
        ("(1,)", "takes 4 bytes; it has 8"),
        ("(1 << 40,)", "does not start with an"),
        ("(1099511627776, 3)", "takes 13,194,139,533,312 bytes"),
        ("(-2, -1)", "no array can have"),
        ("(0, 140737488355328, 140737488355328)", "no array can have"),
        (f"({'1, ' * 40})", "no array can have"),
    ],
)
def test_shape_that_does_not_match_the_bytes_is_refused(tmp_path: Path, shape: str, message: str) -> None:
    raw = header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}") + bytes(8)
    with pytest.raises(UnreadableInput, match=message):
        open_checkpoint(archive(tmp_path / "x.npz", a=raw))


def test_oldest_and_the_longer_header_versions_are_read(tmp_path: Path) -> None:
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2L,), }"  # as Python 2 wrote it
    for version in (b"\x01\x00", b"\x02\x00"):
        path = archive(tmp_path / "x.npz", a=header(text, version) + np.ones(2, "<f4").tobytes())
        np.testing.assert_array_equal(open_checkpoint(path).tensor("a"), np.ones(2, np.float32))


@pytest.mark.parametrize("deflated", [False, True])
def test_damaged_file_ends_in_a_result_or_one_sentence(tmp_path: Path, deflated: bool) -> None:
    path = tmp_path / "x.npz"
    turned = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    (np.savez_compressed if deflated else np.savez)(path, a=np.arange(6), b=np.ones((2, 3)), c=turned)
    outcomes = {survives(path, damaged) for damaged in mangled(path.read_bytes(), 600, seed=deflated)}
    assert outcomes == {True, False}
