"""Packed runs (.tbp), our own format."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from random import Random
from typing import Any

from cases import Case
from mutations import VALUES, mutate_bytes, mutate_json, pick_count, write_json
from pickle_mutations import INTEGERS, bomb

FILE = "run.tbp"


def seeds() -> list[Case]:
    import numpy as np

    from tiebeam.train.artifact import pack

    random = np.random.default_rng(0)
    tensors: dict[str, Any] = {
        "tok_emb.weight": random.standard_normal((9, 4)).astype(np.float32),
        "norm": np.ones(4, np.float32),
        "scalar": np.float32(3).reshape(()),
        "none": np.zeros((0, 4), np.float32),
    }
    files = {"config.json": '{"model_type": "qwen3"}', "tokenizer.json": "{}"}
    return [
        {FILE: pack(tensors, files, frozenset({"tok_emb.weight"}), weights, embed)}
        for weights, embed in (("int8", "int8"), ("int6", "fp16"), ("fp32", "fp32"), ("int6", "int4"))
    ]


def mutate(case: Case, rng: Random) -> Case:
    raw = case[FILE]
    (length,) = struct.unpack_from("<Q", raw.ljust(16, b"\0"), 8)
    header, body = raw[16 : 16 + length], raw[16 + length :]
    kind = rng.random()
    if kind < 0.1 or length > len(raw):
        return {FILE: mutate_bytes(raw, rng)}
    if kind < 0.2:
        body = rng.choice((mutate_bytes(body, rng), body + b"\0", body[:-1], b"", bomb(rng)))
    elif kind < 0.45:
        header, body = _mutate_numbers(header, body, rng)
    elif kind < 0.6:
        header = _mutate_within_rules(header, rng)
    elif kind < 0.75:
        header = mutate_json(header, rng)
    else:
        header = _mutate_fields(header, rng)
    length = len(header) if rng.random() < 0.95 else rng.choice((0, len(header) - 1, 2**40, 2**64 - 1))
    magic = raw[:7] + rng.choice((b"\1", b"\2", b"\3")) if rng.random() < 0.1 else raw[:8]
    return {FILE: magic + struct.pack("<Q", max(0, length)) + header + body}


def _mutate_numbers(raw: bytes, body: bytes, rng: Random) -> tuple[bytes, bytes]:
    """Other numbers and scales in a body of the same size (infinities and NaN among them), compressed either way."""
    try:
        header: Any = json.loads(raw)
        numbers = bytearray(_decompressed(header["compression"], body))
        for _ in range(pick_count(rng)):
            at = rng.randrange(len(numbers))
            block = rng.choice((b"\0\x7c", b"\xff\xff", b"\0\0\x80\x7f", b"\x80", rng.randbytes(4)))[
                : len(numbers) - at
            ]
            numbers[at : at + len(block)] = block
        header["compression"] = rng.choice(("zlib", "zstd"))
        return json.dumps(header).encode(), _compressed(header["compression"], bytes(numbers))
    except (ValueError, KeyError, TypeError, zlib.error):
        return raw, mutate_bytes(body, rng)


def _decompressed(compression: str, body: bytes) -> bytes:
    if compression == "zlib":
        return zlib.decompress(body)
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj().decompress(body)


def _compressed(compression: str, numbers: bytes) -> bytes:
    if compression == "zlib":
        return zlib.compress(numbers)
    import zstandard

    return zstandard.ZstdCompressor().compress(numbers)


def _mutate_within_rules(raw: bytes, rng: Random) -> bytes:
    """A change that leaves the sizes as they are: names, files, shapes of as many numbers, fields that nobody reads."""
    try:
        header: Any = json.loads(raw)
        entry = rng.choice(header["tensors"])
        match rng.randrange(4):
            case 0:
                entry["name"] = rng.choice(
                    ("norm", "a.b", "é", "\x1b[2J", "\n::error::x", "../x", "/x", "a\0b", "x" * 300)
                )
            case 1:
                header["files"][rng.choice(("config.json", "../x", "é", ""))] = rng.choice(("", "{}", "\0", "x" * 5000))
            case 2:
                entry["shape"] = rng.choice((entry["shape"][::-1], [*entry["shape"], 1], [1, *entry["shape"]]))
            case _:
                rng.choice((header, entry))["unread"] = rng.choice(VALUES)
        return write_json(header, rng)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return mutate_json(raw, rng)


def _mutate_fields(raw: bytes, rng: Random) -> bytes:
    """A change that the header's rules are about: names, shapes, precisions, ranges, the size."""
    try:
        header: Any = json.loads(raw)
        entries = header["tensors"]
        for _ in range(pick_count(rng)):
            entry = rng.choice(entries)
            match rng.randrange(7):
                case 0:
                    entry["shape"] = rng.choice(([rng.choice(INTEGERS)], [0, rng.choice(INTEGERS)], entry["shape"] * 2))
                case 1:
                    entry["precision"] = rng.choice(
                        ("int8", "int6", "fp16", "fp32", "int5", "int3", "mixed", "int9", 8, None)
                    )
                case 2:
                    entry["range"][rng.randrange(2)] = rng.choice(INTEGERS)
                case 3:
                    entry["name"] = rng.choice((*VALUES, "norm", "__metadata__", "x" * 2000))
                case 4:
                    header["size"] = rng.choice((*INTEGERS, 1.5, "8", None))
                case 5:
                    header["compression"] = rng.choice(("zlib", "zstd", "none", None, 3, []))
                case _:
                    rng.shuffle(entries)
        return write_json(header, rng)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return mutate_json(raw, rng)


def read(directory: Path) -> object:
    from safetensors.numpy import load_file

    from tiebeam.train.unpack_artifact import open_artifact

    artifact = open_artifact(directory / FILE)
    target = directory.parent / "unpacked.safetensors"
    target.unlink(missing_ok=True)
    artifact.write_safetensors(target)
    if target.stat().st_size < 1 << 20:  # what we write, the reference reads
        assert set(load_file(target)) == {tensor.name for tensor in artifact.tensors}
        assert set(artifact.read().tensors) == {tensor.name for tensor in artifact.tensors}
    return None
