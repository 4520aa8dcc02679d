"""Rewrite a GGUF file: other tensors, other values of some metadata keys, every other byte the same."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiebeam.checkpoint.files import Files, LocalFiles
from tiebeam.checkpoint.formats.gguf import (
    ARRAY,
    SCALARS,
    STRING,
    HeaderCursor,
    metadata_ranges,
    read_counts,
    read_metadata,
)
from tiebeam.checkpoint.write.copy_bytes import Content, Joined, Made, Span, pieces
from tiebeam.checkpoint.write.safetensors import Entry


@dataclass(frozen=True, slots=True)
class Preamble:
    """What comes before the tensor table of a file: its version, and its metadata, from the number of keys on."""

    version: int
    keys: Span | Joined
    alignment: int

    def layout(self, entries: Sequence[Entry]) -> list[Content]:
        """The contents of the file with `entries` as its tensors."""
        from gguf.constants import GGMLQuantizationType

        table, at = b"", 0
        data: list[Content] = []
        for entry in entries:
            name, shape = entry.name.encode(), entry.shape[::-1]  # GGUF lists the fastest dimension first
            table += struct.pack("<Q", len(name)) + name
            table += struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, GGMLQuantizationType[entry.dtype], at)
            data += [*pieces(entry.content), Made.of(bytes(-entry.nbytes % self.alignment))]
            at += entry.nbytes + -entry.nbytes % self.alignment
        head = b"GGUF" + struct.pack("<IQ", self.version, len(entries))
        before = len(head) + self.keys.nbytes + len(table)
        return [Made.of(head), *pieces(self.keys), Made.of(table + bytes(-before % self.alignment)), *data]

    def replacing(self, values: Mapping[str, Any]) -> Preamble:
        """The same with other values of some keys, each in the type that the file has; a new key comes last."""
        assert isinstance(self.keys, Span), "values are replaced once"
        path = self.keys.path
        cursor = HeaderCursor(LocalFiles(path.parent), path.name)
        read_counts(cursor)
        ranges = metadata_ranges(cursor)
        new = {key: value for key, value in values.items() if key not in ranges}
        parts: list[Span | Made] = [Made.of(struct.pack("<Q", len(ranges) + len(new)))]
        at = self.keys.begin + 8
        for key, (kind, element, begin, end) in ranges.items():
            if key in values:
                stored = cursor.files.read(path.name, begin + 12, end) if element == STRING else b""
                parts += [Span(path, at, begin), Made.of(_encoded(kind, element, values[key], stored))]
                at = end
        parts.append(Span(path, at, self.keys.end))
        for key, value in new.items():
            kind, element = (ARRAY, _kind(value[0])) if isinstance(value, list) else (_kind(value), 0)
            name = key.encode()
            lead = struct.pack("<Q", len(name)) + name + struct.pack("<I", kind)
            parts.append(Made.of(lead + _encoded(kind, element, value)))
        return replace(self, keys=Joined(tuple(parts)))


def _kind(value: Any) -> int:
    """The type of a key that the file does not have yet: what the gguf package writes for such a value."""
    return {bool: 7, int: 5, float: 6, str: STRING}[type(value)]


def _encoded(kind: int, element: int, value: Any, stored: bytes = b"") -> bytes:
    """`stored` is an array of strings as the file has it: a string that does not change keeps its bytes, even if they
    are not UTF-8."""
    if kind == ARRAY:
        lead = struct.pack("<IQ", element, len(value))
        if element == STRING:
            return lead + b"".join(_strings(value, stored))
        return lead + struct.pack(f"<{len(value)}{SCALARS[element]}", *value)
    if kind == STRING:
        raw: bytes = value.encode()
        return struct.pack("<Q", len(raw)) + raw
    return struct.pack(f"<{SCALARS[kind]}", value)


def _strings(values: Sequence[str], stored: bytes) -> Iterator[bytes]:
    at, odd = 0, None
    for value in values:
        if at < len(stored):
            begin, at = at, at + 8 + struct.unpack_from("<Q", stored, at)[0]
            if stored[begin + 8 : at].decode("utf-8", "replace") == value:
                yield stored[begin:at]
                continue
        if "\ufffd" in value:  # perhaps bytes that are not UTF-8, at another place
            odd = _not_utf8(stored) if odd is None else odd
            if value in odd:
                yield odd[value]
                continue
        yield _encoded(STRING, 0, value)


def _not_utf8(stored: bytes) -> dict[str, bytes]:
    """The strings of a stored array that are not UTF-8, as they are read: as they are stored."""
    found, at = {}, 0
    while at < len(stored):
        begin, at = at, at + 8 + struct.unpack_from("<Q", stored, at)[0]
        text = stored[begin + 8 : at].decode("utf-8", "replace")
        if text.encode() != stored[begin + 8 : at]:
            found[text] = stored[begin:at]
    return found


def read_preamble(files: Files, name: str, path: Path) -> Preamble:
    """The preamble of the file `name`, whose real path is `path`."""
    cursor = HeaderCursor(files, name)
    (version,) = struct.unpack_from("<I", cursor.window, 4)
    read_counts(cursor)
    begin = cursor.position
    metadata = read_metadata(cursor)
    return Preamble(version, Span(path, begin, cursor.position), metadata.get("general.alignment", 32))
