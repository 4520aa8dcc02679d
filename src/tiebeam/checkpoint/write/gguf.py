"""Rewrite a GGUF file with tensors added or removed: metadata byte for byte, a new tensor table, the same data."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.formats.gguf import HeaderCursor, read_counts, read_metadata
from tiebeam.checkpoint.write.copy_bytes import Content, Made, Span
from tiebeam.checkpoint.write.safetensors import Entry


@dataclass(frozen=True, slots=True)
class Preamble:
    """What comes before the tensor table of a file: its version, and its metadata as a byte range."""

    version: int
    keys: Span
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
            data += [entry.content, Made.of(bytes(-entry.nbytes % self.alignment))]
            at += entry.nbytes + -entry.nbytes % self.alignment
        head = b"GGUF" + struct.pack("<IQ", self.version, len(entries))
        before = len(head) + self.keys.nbytes + len(table)
        return [Made.of(head), self.keys, Made.of(table + bytes(-before % self.alignment)), *data]


def read_preamble(files: Files, name: str, path: Path) -> Preamble:
    """The preamble of the file `name`, whose real path is `path`."""
    cursor = HeaderCursor(files, name)
    (version,) = struct.unpack_from("<I", cursor.window, 4)
    read_counts(cursor)
    begin = cursor.position
    metadata = read_metadata(cursor)
    return Preamble(version, Span(path, begin, cursor.position), metadata.get("general.alignment", 32))
