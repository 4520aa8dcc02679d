"""The GGUF header: key/value metadata, then the tensor table, then the numbers.

Parsed here and not by `gguf.GGUFReader`, which creates an array for every string (seconds for a vocabulary of 50,000),
maps the whole file and trusts every length in it. The `gguf` package knows the tensor types and their blocks, and
decodes the numbers. Little-endian versions 2 and 3 are read: all that are in use. What ggml refuses is refused, so a
file that opens here opens in llama.cpp: docs/reliability.md lists the two exceptions.

An array of strings can only be skipped by reading its lengths. That is fast; creating Python strings is not, so long
arrays (the tokenizer's) stay in the file until they are used: see `StoredArray`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, overload

from tiebeam.checkpoint.dtypes import is_shape, nbytes
from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.tensors import Header, TensorInfo
from tiebeam.errors import MissingExtra, UnreadableInput
from tiebeam.limits import (
    MAX_GGUF_ARRAY,
    MAX_GGUF_DIMENSIONS,
    MAX_GGUF_HEADER,
    MAX_GGUF_KEY,
    MAX_GGUF_KEYS,
    MAX_GGUF_NAME,
    MAX_GGUF_NESTING,
    MAX_GGUF_TENSORS,
    MAX_GGUF_TEXT,
)  # fmt: skip

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_LENGTH = struct.Struct("<Q").unpack_from
_DEFAULT_ALIGNMENT = 32

_LISTED = 1024  # arrays up to this length are read at once
_FIRST_WINDOW, _WINDOW = 1 << 16, 1 << 22


class StoredArray(Sequence[Any]):
    """A long array of a header that stays in the file until one of its values is used; then all are read."""

    def __init__(self, files: Files, file: str, kind: int, count: int, begin: int, end: int) -> None:
        self._files, self._file, self._kind, self._count, self._range = files, file, kind, count, (begin, end)

    @cached_property
    def _values(self) -> list[Any]:
        raw = self._files.read(self._file, *self._range)
        return _strings(raw, self._count) if self._kind == _STRING else _numbers(raw, self._kind, self._count)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._values[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __repr__(self) -> str:
        return f"<{self._count:,} values in {self._file}>"


def _strings(raw: bytes, count: int) -> list[str]:
    """Strings whose lengths were checked before."""
    values, at = [], 0
    for _ in range(count):
        begin = at + 8
        at = begin + _LENGTH(raw, at)[0]
        values.append(raw[begin:at].decode("utf-8", "replace"))
    return values


def _numbers(raw: bytes, kind: int, count: int) -> list[Any]:
    return list(struct.unpack(f"<{count}{_SCALARS[kind]}", raw))


class HeaderCursor:
    """Reads a header through a moving window on the file, so that memory depends on the header and not on the file."""

    def __init__(self, files: Files, file: str) -> None:
        self.files, self.file = files, file
        self.size, self.window = files.head(file, _FIRST_WINDOW)
        self._base = 0  # first byte of the window in the file
        self._at = 0  # position in the window, or beyond it after a skip

    @property
    def position(self) -> int:
        return self._base + self._at

    def _check(self, count: int) -> None:
        if self.position + count > self.size:
            raise UnreadableInput(
                f"{self.file} is truncated: its header continues past the end of the file, byte {self.size:,}"
            )
        if self.position + count > MAX_GGUF_HEADER:
            raise UnreadableInput(
                f"{self.file} has a header that exceeds the limit of {MAX_GGUF_HEADER:,} bytes; refusing to read"
            )

    def _need(self, count: int) -> None:
        """Move the window until the next `count` bytes are in it."""
        if self._at + count > len(self.window):
            self._check(count)
            begin = self.position
            self.window = self.files.read(self.file, begin, min(self.size, begin + max(count, _WINDOW)))
            self._base, self._at = begin, 0

    def skip(self, count: int) -> None:
        self._check(count)
        self._at += count

    def take(self, layout: str) -> tuple[Any, ...]:
        layout = "<" + layout
        count = struct.calcsize(layout)
        self._need(count)
        values = struct.unpack_from(layout, self.window, self._at)
        self._at += count
        return values

    def bytes(self, limit: int, what: str) -> bytes:
        (length,) = self.take("Q")
        if length > limit:
            raise UnreadableInput(
                f"{self.file} has {what} of {length:,} bytes, which exceeds the limit of {limit:,}; refusing to read"
            )
        self._need(length)
        value = self.window[self._at : self._at + length]
        self._at += length
        return value

    def name(self, limit: int, what: str) -> str:
        raw = self.bytes(limit, what)
        if b"\0" in raw:  # ggml would end the name there, so two readers would see two names
            raise UnreadableInput(f"{self.file} has {what} with a NUL in it: {raw[:40]!r}")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise UnreadableInput(f"{self.file} has {what} that is not UTF-8: {raw[:40]!r}") from None

    def skip_strings(self, count: int) -> None:
        """Read a length, skip that many bytes, repeat: the hot loop of opening a model with a large vocabulary."""
        while count:
            self._need(8)
            window, at, last = self.window, self._at, len(self.window) - 8
            while count and at <= last:
                at += 8 + _LENGTH(window, at)[0]
                count -= 1
            self._at = at
            self._check(0)


def read_header(files: Files, name: str) -> Header:
    """The metadata and tensors of one GGUF file."""
    types = _tensor_types()
    cursor = HeaderCursor(files, name)
    tensor_count = read_counts(cursor)
    metadata = read_metadata(cursor)
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if alignment == 0 or alignment & (alignment - 1):
        raise UnreadableInput(f"{name}: general.alignment is {alignment!r}, not a power of two")
    entries = [_read_entry(cursor) for _ in range(tensor_count)]
    data_begin, expected = _padded(cursor.position, alignment), 0
    tensors: dict[str, TensorInfo] = {}
    for tensor, shape, kind, offset in entries:
        if kind not in types:
            raise UnreadableInput(
                f"{name}: {tensor!r} has the unknown tensor type {kind}; update the gguf package "
                "(pip install -U gguf), or convert the model again"
            )
        if tensor in tensors:
            raise UnreadableInput(f"{name} stores {tensor!r} twice")
        length = nbytes(types[kind], shape) if shape or types[kind] in _PLAIN else None
        if length is None:
            raise UnreadableInput(
                f"{name}: {tensor!r} is {types[kind]} {list(shape)}, which is not a whole number of blocks"
            )
        if offset != expected:
            raise UnreadableInput(
                f"{name}: {tensor!r} starts at byte {offset:,} of the data, not at {expected:,}; tensors must follow "
                f"each other in the order of the table, aligned to {alignment}"
            )
        begin = data_begin + offset
        if begin + length > cursor.size:
            raise UnreadableInput(
                f"{name} is truncated: {tensor!r} needs {begin + length:,} bytes, the file has {cursor.size:,}"
            )
        tensors[tensor] = TensorInfo(tensor, shape, types[kind], name, begin, begin + length)
        expected = _padded(offset + length, alignment)
    return Header(tensors, metadata)


def _padded(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


_PLAIN = frozenset({"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"})


def _tensor_types() -> dict[int, str]:
    """Tensor type number of ggml -> its name."""
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError:
        raise MissingExtra("reading GGUF", "gguf") from None
    return {int(kind): kind.name for kind in GGML_QUANT_SIZES}


def read_counts(cursor: HeaderCursor) -> int:
    """Read magic, version and the number of tensors, which is returned; the number of keys comes next."""
    file = cursor.file
    if not cursor.window.startswith(b"GGUF"):
        raise UnreadableInput(f"{file} is not a GGUF file: it starts with {cursor.window[:4]!r}, not b'GGUF'")
    cursor.skip(4)
    (version,) = cursor.take("I")
    if version and version & 0xFFFF == 0:
        raise UnreadableInput(
            f"{file} is a big-endian GGUF file, which is not supported; convert the model again as little-endian"
        )
    if version not in (2, 3):
        raise UnreadableInput(
            f"{file} is GGUF version {version}; only versions 2 and 3 are supported: convert the model again"
        )
    (count,) = cursor.take("Q")
    if count > MAX_GGUF_TENSORS:
        raise UnreadableInput(
            f"{file} has {count:,} tensors, which exceeds the limit of {MAX_GGUF_TENSORS:,}; refusing to read"
        )
    assert isinstance(count, int)
    return count


def read_metadata(cursor: HeaderCursor) -> dict[str, Any]:
    """The key/value pairs, from the number of keys on."""
    (count,) = cursor.take("Q")
    if count > MAX_GGUF_KEYS:
        raise UnreadableInput(
            f"{cursor.file} has {count:,} keys, which exceeds the limit of {MAX_GGUF_KEYS:,}; refusing to read"
        )
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.name(MAX_GGUF_KEY, "a key")
        if not key:
            raise UnreadableInput(f"{cursor.file} has an empty key")
        if key in metadata:
            raise UnreadableInput(f"{cursor.file} defines {key!r} twice")
        (kind,) = cursor.take("I")
        if key == "general.alignment" and kind != _UINT32:
            raise UnreadableInput(f"{cursor.file}: general.alignment has the value type {kind}, not {_UINT32} (uint32)")
        metadata[key] = _read_value(cursor, kind, key)
    return metadata


def _read_value(cursor: HeaderCursor, kind: int, key: str, depth: int = 0) -> Any:
    if kind in _SCALARS:
        return cursor.take(_SCALARS[kind])[0]
    if kind == _STRING:
        return cursor.bytes(MAX_GGUF_TEXT, f"text under {key!r}").decode("utf-8", "replace")
    if kind != _ARRAY or depth == MAX_GGUF_NESTING:
        what = "arrays nested too deeply" if kind == _ARRAY else f"the unknown value type {kind}"
        raise UnreadableInput(f"{cursor.file} has {what} under {key!r}")
    kind, count = cursor.take("IQ")
    begin = cursor.position
    if count > MAX_GGUF_ARRAY:
        raise UnreadableInput(
            f"{cursor.file} has an array of {count:,} values under {key!r}, which exceeds the limit of "
            f"{MAX_GGUF_ARRAY:,}; refusing to read"
        )
    if kind in _SCALARS:
        cursor.skip(count * struct.calcsize(_SCALARS[kind]))
    elif kind == _STRING:
        cursor.skip_strings(count)
    else:
        return [_read_value(cursor, kind, key, depth + 1) for _ in range(count)]
    stored = StoredArray(cursor.files, cursor.file, kind, count, begin, cursor.position)
    return list(stored) if count <= _LISTED else stored


def _read_entry(cursor: HeaderCursor) -> tuple[str, tuple[int, ...], int, int]:
    """One entry of the tensor table: name, shape (GGUF lists the fastest dimension first), type, offset."""
    name = cursor.name(MAX_GGUF_NAME, "a tensor name")
    (dimensions,) = cursor.take("I")
    if dimensions > MAX_GGUF_DIMENSIONS:
        raise UnreadableInput(
            f"{cursor.file}: {name!r} has {dimensions:,} dimensions, which exceeds the limit of {MAX_GGUF_DIMENSIONS}; "
            "refusing to read"
        )
    *shape, kind, offset = cursor.take(f"{dimensions}QIQ")
    if not is_shape(shape):
        raise UnreadableInput(f"{cursor.file}: {name!r} has the impossible shape {shape[::-1]}; refusing to read")
    return name, tuple(reversed(shape)), kind, offset


def check_split(source: str, headers: Sequence[Header]) -> None:
    """Check a split model: each file says which part it is, of how many, with how many tensors."""
    held = sum(len(header.tensors) for header in headers)
    for i, header in enumerate(headers):
        count, number = header.metadata.get("split.count") or 1, header.metadata.get("split.no") or 0
        if (count, number) != (len(headers), i):
            raise UnreadableInput(
                f"{source}: file {i + 1} of {len(headers)} says that it is part {number!r:.9} of {count!r:.9}, counted "
                "from 0; keep all parts in one directory as NAME-00001-of-0000N.gguf"
            )
        total = header.metadata.get("split.tensors.count", held)
        if total != held:
            raise UnreadableInput(f"{source} should have {total!r:.9} tensors but holds {held:,}; download it again")
