"""The safetensors header: 8 bytes of length, that many bytes of JSON, then the numbers.

Parsed here and not through `safetensors.safe_open`, which maps the whole file, cannot read from a range request, and
takes milliseconds per shard. The rules are those of the Rust reader: a limit on the length, ranges that neither overlap
nor leave gaps, and sizes that agree with shape and type.

Opening a model of hundreds of shards spends most of its time here, so there are two parsers: a fast one that accepts
what every writer writes, and, if anything is unusual, a slow one that checks every rule and names the violation.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from tiebeam.checkpoint import dtypes
from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.json_files import CHECKED_FROM, decode_json, parse_json
from tiebeam.checkpoint.tensors import Header, TensorInfo
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_DIMENSION, MAX_DIMENSIONS, MAX_SAFETENSORS_HEADER

_FIRST = 1 << 13  # one read covers the length and, in a model of many shards, the whole header


def read_header(files: Files, name: str) -> Header:
    """The tensors and the metadata of one safetensors file."""
    size, first = files.head(name, _FIRST)
    if size < 8 or len(first) < 8:
        raise UnreadableInput(f"{name} is {size} bytes long; a safetensors file has at least 8")
    length = int.from_bytes(first[:8], "little")
    if length > MAX_SAFETENSORS_HEADER:
        raise UnreadableInput(
            f"{name} has a header length of {length:,}, which exceeds the limit of {MAX_SAFETENSORS_HEADER:,}; "
            "refusing to read"
        )
    data_begin = 8 + length
    if data_begin > size:
        raise UnreadableInput(f"{name} is truncated: its header needs {data_begin:,} bytes, the file has {size:,}")
    raw = first[8:data_begin] if data_begin <= len(first) else first[8:] + files.read(name, len(first), data_begin)
    # Some writers align the numbers with white space before the header.
    if raw[:1] != b"{" and not raw.lstrip(b" \t\r\n").startswith(b"{"):
        raise UnreadableInput(f"{name} is not a safetensors file: its header does not start with '{{'")
    return _quick_header(raw, name, data_begin, size) or parse_header(
        parse_json(raw, f"the header of {name}", numbers_are_finite=True), name, data_begin, size
    )


def _refuse(_: str) -> None:
    raise ValueError


_DECODE = json.JSONDecoder(parse_float=_refuse, parse_constant=_refuse).raw_decode


def _quick_header(raw: bytes, file: str, data_begin: int, file_size: int) -> Header | None:
    """The header if nothing about it is unusual, else None. Never an error: `parse_header` raises those.

    Duplicate keys are detected by counting: json keeps one of two, so there are fewer strings than quotation marks.
    """
    if b"\\" in raw or b"-" in raw or file_size > MAX_DIMENSION // 8:  # escapes; negative numbers
        return None
    at, bits, most, new, info = 0, dtypes.BITS, MAX_DIMENSIONS, tuple.__new__, TensorInfo
    try:
        text = raw.decode() if len(raw) < CHECKED_FROM else decode_json(raw, file)
        tensors, length = _DECODE(text)
        metadata, stop = tensors.pop("__metadata__", None), data_begin
        for name, entry in tensors.items():
            shape, dtype, (begin, end) = entry["shape"], entry["dtype"], entry["data_offsets"]
            # Types before any arithmetic: JSON's true and a list are not dimensions. Python treats true as 1.
            if type(shape) is not list or len(shape) > most:
                return None
            size = bits[dtype]
            for dimension in shape:
                if type(dimension) is not int:
                    return None
                size *= dimension
            # A range is not empty, and the last one ends with the file: no dimension is 0 or exceeds MAX_DIMENSION.
            if begin != at or end <= at or size != (end - at) * 8 or (at < 2 and bool in (type(begin), type(end))):
                return None
            start, stop, at = stop, data_begin + end, end
            # tuple.__new__ takes a third of the time of TensorInfo(...).
            tensors[name] = new(info, (name, tuple(shape), dtype, file, start, stop, None, ""))
        strings = 5 * len(tensors)
        if metadata is not None:
            if not set(map(type, metadata.values())) <= {str}:
                return None
            strings += 1 + 2 * len(metadata)
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError, UnreadableInput):
        return None
    usual = stop == file_size and raw.count(b'"') == 2 * strings and not text[length:].strip(" ")
    return new(Header, (tensors, metadata or {}, ())) if usual else None


def parse_header(document: Mapping[str, Any], file: str, data_begin: int, file_size: int) -> Header:
    """The JSON of a header -> tensors at absolute byte ranges, every field checked."""
    metadata = document.get("__metadata__")
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise UnreadableInput(f"{file}: __metadata__ is not a map from strings to strings")
    tensors = {}
    for name, entry in document.items():
        if name != "__metadata__":
            tensors[name] = _tensor(name, entry, file, data_begin)
    _check_cover(tensors.values(), file, data_begin, file_size)
    return Header(tensors, metadata)


def _tensor(name: str, entry: Any, file: str, data_begin: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if type(dtype) is not str or type(begin) is not int or type(end) is not int:
            raise ValueError
    except (TypeError, KeyError, ValueError):
        raise UnreadableInput(f"{file}: the header's entry for {name!r} is malformed") from None
    if not dtypes.is_shape(shape):
        raise UnreadableInput(f"{file}: {name!r} has the shape {reprlib.repr(shape)}, which no tensor can have")
    if dtype not in dtypes.BITS:
        raise UnreadableInput(f"{file}: {name!r} has the unknown element type {dtype!r}")
    if begin > end or begin < 0:
        raise UnreadableInput(f"{file}: {name!r} has the negative range {begin}..{end}")
    if dtypes.nbytes(dtype, tuple(shape)) != end - begin:
        raise UnreadableInput(f"{file}: {name!r} is {dtype} {shape} but its range holds {end - begin:,} bytes")
    return TensorInfo(name, tuple(shape), dtype, file, data_begin + begin, data_begin + end)


def _check_cover(tensors: Iterable[TensorInfo], file: str, data_begin: int, file_size: int) -> None:
    """The ranges must tile the data exactly: no overlap, no gap, nothing past the end."""
    at = data_begin
    for begin, end, name in sorted((t.begin, t.end, t.name) for t in tensors):
        if begin != at:
            problem = "overlaps the tensor before it" if begin < at else "leaves a gap before it"
            raise UnreadableInput(f"{file}: the range of {name!r} {problem}")
        at = end
    if at > file_size:
        raise UnreadableInput(f"{file} is truncated: its tensors need {at:,} bytes, the file has {file_size:,}")
    if at < file_size:
        raise UnreadableInput(
            f"{file} has {file_size - at:,} bytes after its last tensor; the header does not match the file"
        )


def alias_notes(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, str]:
    """Tied names: `save_model` writes {dropped name: kept name} into the metadata; other entries are ignored."""
    return {
        dropped: kept
        for dropped, kept in metadata.items()
        if isinstance(kept, str) and kept in tensors and dropped not in tensors
    }
