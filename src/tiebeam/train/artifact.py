"""The packed artifact (.tbp): quantized, compressed weights and the files of the checkpoint, in one file.

Each row of a matrix becomes integers and one fp16 scale. The largest values are clipped at a quantile, so that one
outlier does not cost the whole row its precision. The vocabulary matrices have their own precision, because rounding a
tied embedding affects both input and output; table_rounding.py chooses their codes. Small tensors stay fp16 and
vectors fp32. Codes take a byte each whatever their bits: the compression of the body makes fewer bits smaller.

Layout: 8 bytes of magic with the version, a 64-bit header length, a JSON header, one compressed body with the tensors
one after the other. Nothing is pickled. `unpack_artifact.py` reads it. Version 2 has the precisions int5 to int3, and
"mixed" for a table whose rows have different numbers of bits; a file without them is version 1, as before.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from tiebeam.errors import BadRequest
from tiebeam.limits import MAX_ARTIFACT_HEADER
from tiebeam.surgery.quantize.precisions import Precision
from tiebeam.surgery.quantize.rounding import Rounded, round_nearest

MAGIC = b"TIEBEAM\x01"
MAGIC_2 = b"TIEBEAM\x02"
CLIP_QUANTILE = 0.9999984
PRECISIONS = {"int8": 127, "int7": 63, "int6": 31, "fp16": 0, "fp32": 0, "int5": 15, "int4": 7, "int3": 3, "mixed": 127}
IN_VERSION_2 = frozenset({"int5", "int4", "int3", "mixed"})
BITS = {name: (limit + 1).bit_length() for name, limit in PRECISIONS.items() if limit and name != "mixed"}
_SMALL = 65_536  # below this a matrix is not worth quantizing

Arrays = Mapping[str, NDArray[np.float32]]


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
    tensors: Arrays,
    files: Mapping[str, str],
    tables: frozenset[str],
    weights: str = "int8",
    embed: str = "int8",
    rounded: Mapping[str, Rounded] | None = None,
) -> bytes:
    """The bytes of an artifact.

    Args:
        tensors: float32 arrays by name.
        files: text files to include, by name.
        tables: names of the vocabulary matrices.
        weights: precision of the other matrices.
        embed: precision of the vocabulary matrices.
        rounded: codes and scales of the vocabulary matrices, where they are not to be rounded to nearest here.
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
            codes, scale = _codes(name, tensor, precision, tables, rounded or {})
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
    if len(header) > MAX_ARTIFACT_HEADER:
        raise BadRequest(
            f"config, tokenizer and model card take {len(header):,} bytes, which exceeds the limit of "
            f"{MAX_ARTIFACT_HEADER:,}; train with a smaller tokenizer"
        )
    newer = any(entry["precision"] in IN_VERSION_2 for entry in entries)
    return (MAGIC_2 if newer else MAGIC) + struct.pack("<Q", len(header)) + header + body


def _codes(
    name: str, tensor: NDArray[np.float32], precision: str, tables: frozenset[str], rounded: Mapping[str, Rounded]
) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    if name not in tables:
        return quantize(tensor, PRECISIONS[precision])
    found = rounded.get(name) or round_nearest(tensor, Precision(BITS[precision]))
    return found.codes, found.scales[:, 0].astype(np.float16)


def stored_size(precision: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in the body: an fp16 scale per row and one byte per number, or fp16, or fp32.

    >>> stored_size("int8", (300, 64)), stored_size("fp16", (300, 64))
    (19800, 38400)
    """
    if PRECISIONS[precision]:
        return 2 * shape[0] + prod(shape)
    return prod(shape) * (2 if precision == "fp16" else 4)


def _compress(body: bytes) -> tuple[bytes, str]:
    """With zlib, or with zstd if it is installed and smaller."""
    smallest, method = zlib.compress(body, 9), "zlib"
    try:
        import zstandard
    except ImportError:
        return smallest, method
    other = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(body)
    return (other, "zstd") if len(other) < len(smallest) else (smallest, method)
