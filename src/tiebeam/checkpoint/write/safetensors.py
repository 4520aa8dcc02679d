"""Write safetensors files: a header and an index, and the numbers as spans of other files.

Tensors keep the order of the source. A new tensor goes after those of its own or a wider type, so that every tensor
stays aligned to its element size (readers map them in place), and removing it again restores the old bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiebeam.checkpoint import dtypes
from tiebeam.checkpoint.write.copy_bytes import Content, Made, Span
from tiebeam.errors import BadRequest
from tiebeam.limits import MAX_SAFETENSORS_HEADER

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: Content

    def __post_init__(self) -> None:
        assert dtypes.nbytes(self.dtype, self.shape) == self.content.nbytes, self.name

    @property
    def nbytes(self) -> int:
        return self.content.nbytes


def arrange(entries: Iterable[Entry]) -> list[Entry]:
    """The given order, unless it would misalign a tensor; then wider types first."""
    listed = list(entries)
    at = 0
    for entry in listed:
        if at % _alignment(entry):
            return sorted(listed, key=_alignment, reverse=True)
        at += entry.nbytes
    return listed


def insert(entries: Sequence[Entry], new: Entry) -> list[Entry]:
    """Insert after the last tensor of the same or a wider type."""
    at = max((i + 1 for i, entry in enumerate(entries) if _alignment(entry) >= _alignment(new)), default=0)
    return [*entries[:at], new, *entries[at:]]


def _alignment(entry: Entry) -> int:
    return max(1, dtypes.BITS[entry.dtype] // 8)


def layout(entries: Sequence[Entry], metadata: Mapping[str, str]) -> list[Content]:
    """The contents of a safetensors file: its header, then every tensor in order; adjacent spans are joined."""
    contents: list[Content] = [Made.of(_header(entries, metadata))]
    for entry in entries:
        last, new = contents[-1], entry.content
        if isinstance(last, Span) and isinstance(new, Span) and last.path == new.path and last.end == new.begin:
            contents[-1] = Span(last.path, last.begin, new.end)
        else:
            contents.append(new)
    return contents


def _header(entries: Sequence[Entry], metadata: Mapping[str, str]) -> bytes:
    """As the safetensors library writes it: compact, metadata first, padded with spaces to 8 bytes."""
    document: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for entry in entries:
        if entry.name in document or entry.name == "__metadata__":
            raise BadRequest(f"two tensors would be called {entry.name!r}")
        document[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [at, at + entry.nbytes],
        }
        at += entry.nbytes
    raw = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    if len(raw) > MAX_SAFETENSORS_HEADER:
        raise BadRequest(f"a header of {len(raw):,} bytes exceeds the limit of the format, {MAX_SAFETENSORS_HEADER:,}")
    return struct.pack("<Q", len(raw)) + raw


def index_json(old: Mapping[str, Any] | None, weight_map: Mapping[str, str], total_size: int, params: int) -> str:
    """The index of a sharded model; other keys of the old index are kept. `params` is the change in parameters."""
    metadata = dict((old or {}).get("metadata") or {})
    metadata["total_size"] = total_size
    if isinstance(metadata.get("total_parameters"), int):
        metadata["total_parameters"] += params
    document = {**(old or {}), "metadata": metadata, "weight_map": dict(weight_map)}
    return json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
