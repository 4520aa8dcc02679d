"""The packed artifact: weights rounded to few bits a row, compressed, in one file that carries its own model.

A row of a matrix becomes integers and one fp16 scale; the largest values are clipped at a quantile, because one
outlier should not cost a whole row its precision. The vocabulary table has its own precision, since both ends
feel its rounding. Small tensors stay fp16 and control tensors fp32. Layout: 8 bytes of magic, a 64-bit header
length, a JSON header, one compressed body. No pickle: reading one runs nothing.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.errors import BadRequest, UnreadableInput

MAGIC = b"TIEBEAM\x01"
CLIP_QUANTILE = 0.9999984
PRECISIONS = {"int8": 127, "int7": 63, "int6": 31, "fp16": 0, "fp32": 0}
_SMALL = 65_536  # below this a matrix is not worth rounding
_MAX_HEADER = 64 << 20
_MAX_BODY = 8 << 30

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Packed:
    """What an artifact holds: the tensors as they come back, and the files of the checkpoint."""

    tensors: dict[str, NDArray[np.float32]]
    files: dict[str, str]


def quantise(matrix: NDArray[np.float32], limit: int) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """[R, C] -> integers in -limit..limit [R, C] and scales [R]."""
    size = np.abs(matrix)
    clip = np.quantile(size, CLIP_QUANTILE, axis=1, method="linear") if matrix.size else np.zeros(len(matrix))
    # A scale that fp16 cannot hold would turn the row into zeros or infinities.
    scale = np.clip(clip / limit, 2.0**-24, 65504).astype(np.float16)
    wide = scale.astype(np.float32)[:, None]
    return np.clip(np.rint(matrix / wide), -limit, limit).astype(np.int8), scale


def choose(name: str, tensor: NDArray[np.float32], tables: frozenset[str], weights: str, embed: str) -> str:
    """The precision of one tensor."""
    if tensor.ndim != 2 or tensor.size < 2:
        return "fp32"
    if name in tables:
        return embed
    return weights if tensor.size >= _SMALL or weights == "fp32" else "fp16"


def pack(
    tensors: Arrays, files: Mapping[str, str], tables: frozenset[str], weights: str = "int8", embed: str = "int8"
) -> bytes:
    """The artifact's bytes. `tables` names the vocabulary matrices."""
    for precision in (weights, embed):
        if precision not in PRECISIONS:
            raise BadRequest(f"{precision!r} is not a precision; take one of {', '.join(PRECISIONS)}")
    entries, parts, at = [], [], 0
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name], np.float32)
        precision = choose(name, tensor, tables, weights, embed)
        if not np.isfinite(tensor).all():
            raise BadRequest(f"{name} holds numbers that are not finite; a model like that is not worth packing")
        if PRECISIONS[precision]:
            codes, scale = quantise(tensor, PRECISIONS[precision])
            raw = scale.astype("<f2").tobytes() + codes.tobytes()
        else:
            raw = tensor.astype("<f2" if precision == "fp16" else "<f4").tobytes()
        entries.append(
            {"name": name, "shape": list(tensor.shape), "precision": precision, "range": [at, at + len(raw)]}
        )
        parts.append(raw)
        at += len(raw)
    body, method = _compress(b"".join(parts))
    header = json.dumps({"tensors": entries, "files": dict(files), "compression": method, "size": at}).encode()
    return MAGIC + struct.pack("<Q", len(header)) + header + body


def unpack(path: str | os.PathLike[str]) -> Packed:
    """An artifact -> its tensors and files; every length is checked before it is believed."""
    place = Path(path)
    try:
        raw = place.read_bytes()
    except OSError as error:
        raise UnreadableInput(f"{place} cannot be read: {error.strerror}") from None
    if not raw.startswith(MAGIC) or len(raw) < 16:
        raise UnreadableInput(f"{place} is not an artifact of `tiebeam pack`: it does not start with its mark")
    (length,) = struct.unpack_from("<Q", raw, 8)
    if length > min(_MAX_HEADER, len(raw) - 16):
        raise UnreadableInput(f"{place} is truncated or damaged: its header claims {length:,} bytes")
    try:
        header = json.loads(raw[16 : 16 + length])
        size = header["size"]
        if type(size) is not int or not 0 <= size <= _MAX_BODY:
            raise ValueError(f"its body claims {size!r} bytes")
        body = _decompress(raw[16 + length :], header["compression"], size)
        tensors = {entry["name"]: _read(entry, body) for entry in header["tensors"]}
        files = {str(name): str(text) for name, text in header["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error, RecursionError) as error:
        raise UnreadableInput(f"{place} is damaged: {error}") from None
    return Packed(tensors, files)


def _read(entry: dict[str, Any], body: bytes) -> NDArray[np.float32]:
    shape, precision, (begin, end) = tuple(entry["shape"]), entry["precision"], entry["range"]
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)) or not begin <= end <= len(body):
        raise ValueError(f"the entry of {entry['name']!r} is malformed")
    raw = body[begin:end]
    if PRECISIONS[precision]:
        rows, width = shape
        if len(raw) != rows * (2 + width):
            raise ValueError(f"{entry['name']!r} has {len(raw):,} bytes for {list(shape)}")
        scale = np.frombuffer(raw, "<f2", rows).astype(np.float32)[:, None]
        return np.frombuffer(raw, np.int8, rows * width, rows * 2).reshape(shape).astype(np.float32) * scale
    return np.frombuffer(raw, "<f2" if precision == "fp16" else "<f4").astype(np.float32).reshape(shape)


def _compress(body: bytes) -> tuple[bytes, str]:
    """zstd where it is installed, else zlib; whichever is smaller."""
    smallest, method = zlib.compress(body, 9), "zlib"
    try:
        import zstandard
    except ImportError:
        return smallest, method
    other = zstandard.ZstdCompressor(level=19).compress(body)
    return (other, "zstd") if len(other) < len(smallest) else (smallest, method)


def _decompress(raw: bytes, method: str, size: int) -> bytes:
    """At most `size` bytes, whatever the stream claims."""
    if method == "zlib":
        body = zlib.decompressobj().decompress(raw, size + 1)
    elif method == "zstd":
        try:
            import zstandard
        except ImportError:
            raise UnreadableInput("this artifact is compressed with zstd; pip install zstandard") from None
        try:
            body = zstandard.ZstdDecompressor().stream_reader(raw).read(size + 1)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None
    else:
        raise ValueError(f"it is compressed by {method!r}")
    if len(body) != size:
        raise ValueError(f"its body has {len(body):,} bytes where {size:,} were promised")
    return body
