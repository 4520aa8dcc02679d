"""The safetensors header: 8 bytes of length, that many bytes of JSON, then the numbers.

Parsed here and not through `safetensors.safe_open`, which maps the whole file, cannot be pointed at a range
request, and takes milliseconds a shard. Held to the same rules as the Rust reader: the length bound, ranges
that neither overlap nor leave holes, and sizes that agree with shape and type.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from tiebeam.checkpoint import dtypes
from tiebeam.checkpoint.documents import parse_json
from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.tensors import Header, TensorInfo
from tiebeam.errors import UnreadableInput

MAX_HEADER = 100_000_000  # the format's own bound
_MAX_DIMENSION = 1 << 48


def read_header(files: Files, name: str) -> Header:
    size = files.size(name)
    if size < 8:
        raise UnreadableInput(f"{name} is {size} bytes long; a safetensors file has at least 8")
    # One read covers the length and, for all but the largest files, the whole header.
    first = files.read(name, 0, min(size, 1 << 16))
    (length,) = struct.unpack_from("<Q", first)
    if length > MAX_HEADER:
        raise UnreadableInput(
            f"{name} claims a header of {length:,} bytes; the format allows {MAX_HEADER:,}: not a safetensors file"
        )
    if 8 + length > size:
        raise UnreadableInput(f"{name} is truncated: its header needs {8 + length:,} bytes, the file has {size:,}")
    raw = first[8 : 8 + length] if 8 + length <= len(first) else first[8:] + files.read(name, len(first), 8 + length)
    if not raw.startswith(b"{"):
        raise UnreadableInput(f"{name} is not a safetensors file: its header does not start with '{{'")
    return parse_header(parse_json(raw, f"the header of {name}"), name, 8 + length, size)


def parse_header(document: Mapping[str, Any], file: str, data_begin: int, file_size: int) -> Header:
    """The header's JSON -> tensors at absolute byte ranges, every claim checked."""
    metadata = document.get("__metadata__") or {}
    if not isinstance(metadata, dict):
        raise UnreadableInput(f"{file}: __metadata__ is not an object")
    tensors = {}
    for name, entry in document.items():
        if name != "__metadata__":
            tensors[name] = _tensor(name, entry, file, data_begin)
    _check_cover(tensors.values(), file, data_begin, file_size)
    return Header(tensors, metadata)


def _tensor(name: str, entry: Any, file: str, data_begin: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        for n in (*shape, begin, end):
            if type(n) is not int or not 0 <= n <= _MAX_DIMENSION:
                raise ValueError
    except (TypeError, KeyError, ValueError):
        raise UnreadableInput(f"{file}: the header's entry for {name!r} is malformed") from None
    if dtype not in dtypes.BITS:
        raise UnreadableInput(f"{file}: {name!r} has the unknown element type {dtype!r}")
    if begin > end:
        raise UnreadableInput(f"{file}: {name!r} has the negative range {begin}..{end}")
    if dtypes.nbytes(dtype, shape) != end - begin:
        raise UnreadableInput(f"{file}: {name!r} is {dtype} {list(shape)} but its range holds {end - begin:,} bytes")
    return TensorInfo(name, shape, dtype, file, data_begin + begin, data_begin + end)


def _check_cover(tensors: Iterable[TensorInfo], file: str, data_begin: int, file_size: int) -> None:
    """The ranges, in order, must tile the data exactly: no overlap, no hole, nothing past the end."""
    at = data_begin
    for begin, end, name in sorted((t.begin, t.end, t.name) for t in tensors):
        if begin != at:
            trouble = "overlaps the tensor before it" if begin < at else "leaves a hole before it"
            raise UnreadableInput(f"{file}: the range of {name!r} {trouble}")
        at = end
    if at > file_size:
        raise UnreadableInput(f"{file} is truncated: its tensors need {at:,} bytes, the file has {file_size:,}")
    if at < file_size:
        raise UnreadableInput(f"{file} has {file_size - at:,} bytes after its last tensor; the header does not fit it")


def alias_notes(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, str]:
    """`save_model` writes {dropped name: kept name} among the metadata; keep the notes that make sense."""
    return {
        dropped: kept
        for dropped, kept in metadata.items()
        if isinstance(kept, str) and kept in tensors and dropped not in tensors
    }
