"""GGUF files by hand, to say what the writer would not; and what our reader and ggml make of them.

The cases include those of ggml's own tests (tests/test-gguf.cpp in llama.cpp), in our words.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType as Kind


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, raw: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + raw


def array(kind: int, count: int, raw: bytes = b"") -> bytes:
    return pair("k", 9, struct.pack("<IQ", kind, count) + raw)


def aligned(alignment: int, kind: int = 4, layout: str = "<I") -> bytes:
    return pair("general.alignment", kind, struct.pack(layout, alignment))


def tensor(name: str | bytes, shape: tuple[int, ...] = (2, 2), kind: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def by_hand(
    path: Path,
    pairs: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: int = 64,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
    magic: bytes = b"GGUF",
) -> Path:
    pairs, tensors = pairs or [], [tensor("a")] if tensors is None else tensors
    head = magic + struct.pack("<IQQ", version, *(counts or (len(tensors), len(pairs))))
    raw = head + b"".join(pairs) + b"".join(tensors)
    path.write_bytes(raw + bytes(-len(raw) % alignment) + bytes(data))
    return path


HUGE = (1 << 64) - 1
I8, I64, Q8_0 = int(Kind.I8), int(Kind.I64), int(Kind.Q8_0)

# What is refused: arguments of by_hand, and what the message says.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "magic reversed": ({"magic": b"FUGG"}, "not a GGUF file"),
    "version one": ({"version": 1}, "version 1; only versions 2 and 3 are supported"),
    "version four": ({"version": 4}, "version 4"),
    "big-endian": ({"version": 3 << 24}, "big-endian"),
    "version nought": ({"version": 0}, "version 0"),
    "too many tensors": ({"counts": (HUGE, 0)}, "has 18,446,744,073,709,551,615 tensors"),
    "too many keys": ({"counts": (0, HUGE)}, "has 18,446,744,073,709,551,615 keys"),
    "more tensors than there are": ({"counts": (1000, 0)}, "m.gguf"),
    "more keys than there are": ({"counts": (1, 3)}, "m.gguf"),
    "key twice": ({"pairs": 2 * [pair("k", 4, bytes(4))]}, "defines 'k' twice"),
    "empty key": ({"pairs": [pair("", 4, bytes(4))]}, "empty key"),
    "long key": ({"pairs": [struct.pack("<Q", 1 << 40)]}, "a key of 1,099,511,627,776 bytes"),
    "endless key": ({"pairs": [struct.pack("<Q", HUGE) + b"my_key"]}, "a key of 18,446,744,073,709,551,615 bytes"),
    "key not UTF-8": ({"pairs": [pair(b"\xff", 4, bytes(4))]}, "a key that is not UTF-8"),
    "NUL in a key": ({"pairs": [pair("a\0b", 4, bytes(4))]}, "a key with a NUL"),
    "unknown value type": ({"pairs": [pair("k", 13, b"")]}, "unknown value type 13"),
    "long text": ({"pairs": [pair("k", 8, struct.pack("<Q", HUGE))]}, "text under 'k' of"),
    "text past the end": ({"pairs": [pair("k", 8, struct.pack("<Q", 5000))]}, "truncated"),
    "array past the end": ({"pairs": [array(4, 1 << 20)]}, "truncated"),
    "array past belief": ({"pairs": [array(4, HUGE)]}, "array of 18,446,744,073,709,551,615 values"),
    "strings past the end": ({"pairs": [array(8, 1 << 20)]}, "truncated"),
    "strings past belief": ({"pairs": [array(8, HUGE)]}, "array of 18,446,744,073,709,551,615 values"),
    "a string past belief": ({"pairs": [array(8, 1, struct.pack("<Q", HUGE))]}, "truncated"),
    "arrays past belief": ({"pairs": [array(9, HUGE)]}, "array of 18,446,744,073,709,551,615 values"),
    "arrays in arrays": ({"pairs": [array(9, 1, struct.pack("<IQ", 9, 1) * 9)]}, "nested too deeply"),
    "array of nothing known": ({"pairs": [array(99, 1)]}, "unknown value type 99"),
    "alignment nought": ({"pairs": [aligned(0)]}, "general.alignment is 0"),
    "alignment 48": ({"pairs": [aligned(48)]}, "general.alignment is 48"),
    "alignment 13": ({"pairs": [aligned(13)], "alignment": 13}, "general.alignment is 13"),
    "alignment of int32": ({"pairs": [aligned(32, 5, "<i")]}, "general.alignment has the value type 5"),
    "alignment of uint64": ({"pairs": [aligned(32, 10, "<Q")]}, "general.alignment has the value type 10"),
    "alignment true": ({"pairs": [pair("general.alignment", 7, b"\1")]}, "general.alignment has the value type 7"),
    "alignment a word": ({"pairs": [pair("general.alignment", 8, text("x"))]}, "the value type 8"),
    "unknown tensor type": ({"tensors": [tensor("a", kind=4)]}, "unknown tensor type 4"),
    "tensor type past the last": ({"tensors": [tensor("a", kind=1000)]}, "unknown tensor type 1000"),
    "name of 64 bytes": ({"tensors": [tensor("n" * 64)]}, "a tensor name of 64 bytes, which exceeds the limit of 63"),
    "NUL in a name": ({"tensors": [tensor("a\0b")]}, "a tensor name with a NUL"),
    "name not UTF-8": ({"tensors": [tensor(b"\xc3")]}, "name that is not UTF-8"),
    "five dimensions": ({"tensors": [tensor("a", (1,) * 5)]}, "has 5 dimensions, which exceeds the limit of 4"),
    "negative dimension": ({"tensors": [tensor("a", (HUGE,))]}, "impossible shape"),
    "huge dimension": ({"tensors": [tensor("a", (0, 1 << 60))]}, "impossible shape"),
    "too many elements": ({"tensors": [tensor("a", (0x1FFFFFFFC,) * 2)]}, "impossible shape"),
    "too many bytes": ({"tensors": [tensor("a", (0x60000000,) * 2, I64)]}, "impossible shape"),
    "sizes whose sum overflows": (
        {"tensors": [tensor("a", ((1 << 63) - 64,), I8), tensor("b", ((1 << 63) - 64,), I8, (1 << 63) - 64)]},
        "impossible shape",
    ),
    "partial block": ({"tensors": [tensor("a", (4, 33), Q8_0)]}, "not a whole number of blocks"),
    "a block of no dimensions": ({"tensors": [tensor("a", (), Q8_0)]}, "not a whole number of blocks"),
    "tensor twice": ({"tensors": [tensor("a"), tensor("a", offset=32)]}, "stores 'a' twice"),
    "overlap": ({"tensors": [tensor("a", (3, 4)), tensor("b", offset=32)]}, "'b' starts at byte 32"),
    "same range": ({"tensors": [tensor("a"), tensor("b")]}, "'b' starts at byte 0 of the data, not at 32"),
    "gap": ({"tensors": [tensor("a"), tensor("b", offset=64)], "data": 96}, "starts at byte 64 of the data, not at 32"),
    "order of the table": ({"tensors": [tensor("b", offset=32), tensor("a")]}, "at byte 32 of the data, not at 0"),
    "misaligned": ({"tensors": [tensor("a", offset=8)]}, "aligned to 32"),
    "aligned to 1 by a writer of 32": ({"tensors": [tensor("a"), tensor("b", offset=16)]}, "aligned to 32"),
    "offset past the end": ({"tensors": [tensor("a", offset=64)]}, "starts at byte 64"),
    "endless offset": ({"tensors": [tensor("a", offset=HUGE)]}, "starts at byte 18,446,744,073,709,551,615"),
    "larger than the file": ({"tensors": [tensor("a", (1 << 20, 1 << 20))]}, "truncated: 'a' needs"),
    "one byte missing": ({"data": 15}, "truncated: 'a' needs"),
    "no tensors": ({"tensors": []}, "holds no tensors"),
}  # fmt: skip

# What is read.
ACCEPTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "version two": {"version": 2},
    "bytes after the last tensor": {"data": 100},
    "no padding after the last tensor": {"data": 16},
    "alignment 1": {"pairs": [aligned(1)], "tensors": [tensor("a"), tensor("b", offset=16)], "alignment": 1},
    "alignment 4096": {"pairs": [aligned(4096)], "alignment": 4096},
    "a dimension of 0": {"tensors": [tensor("a", (0, 32), Q8_0), tensor("b")]},
    "no dimensions": {"tensors": [tensor("a", ())]},
    "name of 63 bytes": {"tensors": [tensor("n" * 63)]},
    "empty name": {"tensors": [tensor("")]},
    "four dimensions": {"tensors": [tensor("a", (1, 1, 2, 2))]},
    "text not UTF-8": {"pairs": [pair("k", 8, text(b"\xff"))]},
    "empty array": {"pairs": [array(4, 0)]},
    "array in an array": {"pairs": [array(9, 1, struct.pack("<IQI", 4, 1, 7))]},
}

# Where ggml differs on purpose: docs/reliability.md has the reasons.
READ_BY_GGML = {
    "key not UTF-8", "NUL in a key", "NUL in a name", "name not UTF-8", "huge dimension", "no tensors",
    "larger than the file", "one byte missing", "sizes whose sum overflows",
}  # fmt: skip
REFUSED_BY_GGML = {"array in an array"}
