"""The packed artifact (.tbp): quantized, compressed weights and the files of the checkpoint, in one file.

Each row of a matrix becomes integers and one fp16 scale. The largest values are clipped at a quantile, so that one
outlier does not cost the whole row its precision. The vocabulary matrices have their own precision, because rounding a
tied embedding affects both input and output. Small tensors stay fp16 and vectors fp32.

Layout: 8 bytes of magic, a 64-bit header length, a JSON header, one compressed body. Nothing is pickled.
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
_SMALL = 65_536  # below this a matrix is not worth quantizing
_MAX_HEADER = 64 << 20
_MAX_BODY = 8 << 30

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of an artifact: dequantized tensors, and the text files of the checkpoint."""

    tensors: dict[str, NDArray[np.float32]]
    files: dict[str, str]


def quantize(matrix: NDArray[np.float32], limit: int) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """[R, C] -> integers in -limit..limit [R, C] and scales [R]."""
    magnitude = np.abs(matrix)
    clip = np.quantile(magnitude, CLIP_QUANTILE, axis=1, method="linear") if matrix.size else np.zeros(len(matrix))
    # A scale outside the range of fp16 would turn the row into zeros or infinities.
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
    """The bytes of an artifact.

    Args:
        tensors: float32 arrays by name.
        files: text files to include, by name.
        tables: names of the vocabulary matrices.
        weights: precision of the other matrices.
        embed: precision of the vocabulary matrices.
    """
    for precision in (weights, embed):
        if precision not in PRECISIONS:
            raise BadRequest(f"precision {precision!r} is not supported; use one of {', '.join(PRECISIONS)}")
    entries, parts, at = [], [], 0
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name], np.float32)
        precision = choose(name, tensor, tables, weights, embed)
        if not np.isfinite(tensor).all():
            raise BadRequest(f"{name} has values that are not finite; the model diverged and cannot be packed")
        if PRECISIONS[precision]:
            codes, scale = quantize(tensor, PRECISIONS[precision])
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


def unpack(path: str | os.PathLike[str]) -> Contents:
    """Read an artifact; every length is checked against its limit before use."""
    where = Path(path)
    try:
        raw = where.read_bytes()
    except OSError as error:
        raise UnreadableInput(f"{where} cannot be read: {error.strerror}") from None
    if not raw.startswith(MAGIC) or len(raw) < 16:
        raise UnreadableInput(f"{where} is not an artifact of `tiebeam pack`: its magic bytes are wrong")
    (length,) = struct.unpack_from("<Q", raw, 8)
    if length > min(_MAX_HEADER, len(raw) - 16):
        raise UnreadableInput(
            f"{where} is damaged: header length {length:,} exceeds the file or the limit of {_MAX_HEADER:,} bytes"
        )
    try:
        header = json.loads(raw[16 : 16 + length])
        size = header["size"]
        if type(size) is not int or not 0 <= size <= _MAX_BODY:
            raise ValueError(f"body size {size!r} exceeds the limit of {_MAX_BODY:,}")
        body = _decompress(raw[16 + length :], header["compression"], size)
        tensors = {entry["name"]: _read(entry, body) for entry in header["tensors"]}
        files = {str(name): str(text) for name, text in header["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error, RecursionError) as error:
        raise UnreadableInput(f"{where} is damaged: {error}") from None
    return Contents(tensors, files)


def _read(entry: dict[str, Any], body: bytes) -> NDArray[np.float32]:
    shape, precision, (begin, end) = tuple(entry["shape"]), entry["precision"], entry["range"]
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)) or not begin <= end <= len(body):
        raise ValueError(f"the header entry of {entry['name']!r} is malformed")
    raw = body[begin:end]
    if PRECISIONS[precision]:
        rows, width = shape
        if len(raw) != rows * (2 + width):
            raise ValueError(f"{entry['name']!r} has {len(raw):,} bytes for {list(shape)}")
        scale = np.frombuffer(raw, "<f2", rows).astype(np.float32)[:, None]
        return np.frombuffer(raw, np.int8, rows * width, rows * 2).reshape(shape).astype(np.float32) * scale
    return np.frombuffer(raw, "<f2" if precision == "fp16" else "<f4").astype(np.float32).reshape(shape)


def _compress(body: bytes) -> tuple[bytes, str]:
    """With zlib, or with zstd if it is installed and smaller."""
    smallest, method = zlib.compress(body, 9), "zlib"
    try:
        import zstandard
    except ImportError:
        return smallest, method
    other = zstandard.ZstdCompressor(level=19).compress(body)
    return (other, "zstd") if len(other) < len(smallest) else (smallest, method)


def _decompress(raw: bytes, method: str, size: int) -> bytes:
    """Decompress at most `size` bytes."""
    if method == "zlib":
        body = zlib.decompressobj().decompress(raw, size + 1)
    elif method == "zstd":
        try:
            import zstandard
        except ImportError:
            raise UnreadableInput(
                "this artifact is compressed with zstd; install it with: pip install zstandard"
            ) from None
        try:
            body = zstandard.ZstdDecompressor().stream_reader(raw).read(size + 1)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None
    else:
        raise ValueError(f"compression {method!r} is not supported")
    if len(body) != size:
        raise ValueError(f"the body has {len(body):,} bytes, the header declares {size:,}")
    return body
