"""NumPy's npz: a zip archive with one .npy file per array, each with a small header.

Only the headers are read, by NumPy's own parser and never with pickles. Arrays without numbers (strings, objects,
records) are skipped with a note. Big-endian arrays are refused, because everything that reads these bytes later takes
them as little-endian.
"""

from __future__ import annotations

import io
import warnings
from itertools import accumulate
from math import prod
from operator import mul
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint.dtypes import is_shape
from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.formats.zip_archive import Archive, Member, open_archive
from tiebeam.checkpoint.tensors import Header, TensorInfo
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_NPY_HEADER

if TYPE_CHECKING:
    import numpy as np

_DTYPES = {
    "b1": "BOOL", "i1": "I8", "u1": "U8", "i2": "I16", "u2": "U16", "i4": "I32", "u4": "U32", "i8": "I64", "u8": "U64",
    "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64", "c16": "C128",
}  # fmt: skip


def read_header(files: Files, name: str) -> Header:
    """The arrays of one npz file."""
    archive = open_archive(files, name)
    tensors: dict[str, TensorInfo] = {}
    skipped: dict[str, str] = {}
    for member in archive.members.values():
        if not member.name.endswith(".npy"):
            continue  # not an array
        key = member.name.removesuffix(".npy")
        if key in archive.members:  # NumPy would read that one
            raise UnreadableInput(
                f"{name} holds {key!r} and {member.name!r}, and readers disagree about which one counts"
            )
        described = _describe(archive, member, key)
        if isinstance(described, str):
            skipped[key] = described
        else:
            tensors[key] = described
    if skipped and not tensors:
        key, reason = next(iter(skipped.items()))
        raise UnreadableInput(f"{name} holds no arrays of numbers: {key!r} {reason}")
    notes = [
        f"{len(skipped)} of the arrays in {name} were skipped: {key!r} {reason}"
        for key, reason in [*skipped.items()][:1]
    ]
    return Header(tensors, notes=tuple(notes))


def _describe(archive: Archive, member: Member, key: str) -> TensorInfo | str:
    """Where the array is stored, or why it is skipped."""
    file = archive.file
    shape, fortran, dtype, begin = _parse(archive, member, key)
    if dtype.hasobject:
        return "holds Python objects, which would have to be unpickled"
    code = f"{dtype.kind}{dtype.itemsize}"
    if code == "V2":
        return "has an element type that npz cannot name (perhaps bfloat16); save it as float32"
    if code not in _DTYPES:
        return f"holds {dtype}, which is not a supported number type"
    if dtype.byteorder == ">":
        raise UnreadableInput(
            f"{file}: {key!r} is big-endian; save it as little-endian: array.astype(array.dtype.newbyteorder('<'))"
        )
    if not is_shape(shape):
        raise UnreadableInput(f"{file}: {key!r} has a shape that no array can have")
    size = prod(shape)
    end = begin + size * dtype.itemsize
    if end != member.size:
        raise UnreadableInput(
            f"{file}: {key!r} is {_DTYPES[code]} {list(shape)}, which takes {end - begin:,} bytes; "
            f"it has {member.size - begin:,}"
        )
    strides: tuple[int, ...] | None = None
    if fortran and size and sum(n > 1 for n in shape) > 1:
        strides = tuple(accumulate(shape[:-1], mul, initial=1))
    if member.deflated:
        return TensorInfo(key, shape, _DTYPES[code], file, begin, end, strides, member.name)
    at = archive.begin(member.name)
    return TensorInfo(key, shape, _DTYPES[code], file, at + begin, at + end, strides)


def _parse(archive: Archive, member: Member, key: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether it is column-major, element type, and the byte where the numbers start in the member."""
    from numpy.lib import format as npy

    raw = io.BytesIO(archive.read(member.name, 0, min(member.size, MAX_NPY_HEADER + 16)))
    try:
        version = npy.read_magic(raw)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        with warnings.catch_warnings(action="ignore"):  # about headers that Python 2 wrote
            shape, fortran, dtype = read(raw, max_header_size=MAX_NPY_HEADER)
    except Exception:  # NumPy parses the header as a Python literal, which can fail in any way
        raise UnreadableInput(f"{archive.file}: {key!r} does not start with an .npy header; it is damaged") from None
    return shape, fortran, dtype, raw.tell()
