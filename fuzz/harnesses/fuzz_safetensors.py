"""safetensors, against the reference reader in Rust."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from cases import Case
from mutations import RAW, VALUES, mutate_bytes, mutate_value, pick_count, write_json

FILE = "model.safetensors"
DTYPES = ("F64", "F32", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F4", "F8_E8M0", "C64", "Q4_K", "f32", "")
SIZES = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    16,
    64,
    2**31,
    2**32,
    2**48,
    2**48 + 1,
    2**62,
    2**63,
    2**64 - 1,
    2**64,
    10**40,
    -1,
    True,
    1.0,
)


def seeds() -> list[Case]:
    import numpy as np
    from safetensors.numpy import save

    embed = np.arange(24, dtype=np.float32).reshape(8, 3)
    plain = save({"model.embed_tokens.weight": embed, "lm_head.weight": embed + 1, "n": np.array(3)})
    tied = save({"transformer.wte.weight": embed.astype(np.float16)}, metadata={"format": "pt", "lm_head.weight": "a"})
    small = save({"a": np.arange(4, dtype=np.int8), "c": np.zeros((0, 5), np.int64), "d": np.array([False, True])})
    return [{FILE: plain}, {FILE: tied}, {FILE: small}]


def mutate(case: Case, rng: Random) -> Case:
    raw = case[FILE]
    (length,) = struct.unpack_from("<Q", raw.ljust(8, b"\0"))
    body = raw[8 + length :]
    try:
        header = json.loads(raw[8 : 8 + length])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or rng.random() < 0.15:
        return {FILE: mutate_bytes(raw, rng)}
    for _ in range(pick_count(rng)):
        header = (
            _mutate_header(header, rng)
            if isinstance(header, dict) and rng.random() < 0.7
            else mutate_value(header, rng)
        )
    text = write_json(header, rng)
    if rng.random() < 0.1:
        text += b" " * rng.randrange(9)
    length = (
        len(text) if rng.random() < 0.95 else max(0, rng.choice((0, 1, len(text) - 1, len(text) + 1, 10**8, 2**63)))
    )
    if rng.random() < 0.1:
        body = rng.choice((body[:-1], body + b"\0", b"", body * 2))
    return {FILE: struct.pack("<Q", length) + text + body}


def _mutate_header(header: dict[str, Any], rng: Random) -> dict[str, Any]:
    """A change that a header's rules are about: types, shapes, ranges, names, metadata."""
    names = [name for name, entry in header.items() if name != "__metadata__" and isinstance(entry, dict)]
    if not names:
        return header
    name = rng.choice(names)
    entry = header[name]
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    match rng.randrange(9):
        case 0:
            entry["dtype"] = rng.choice(DTYPES)
        case 1 if isinstance(shape, list):
            shape.insert(rng.randrange(len(shape) + 1), rng.choice((*SIZES, *VALUES)))
        case 2 if isinstance(shape, list) and shape:
            shape[rng.randrange(len(shape))] = rng.choice((*SIZES, *RAW))
        case 3 if isinstance(offsets, list) and offsets:
            offsets[rng.randrange(len(offsets))] = rng.choice(SIZES)
        case 4:  # swap the ranges of two tensors
            other = header[rng.choice(names)]
            entry["data_offsets"], other["data_offsets"] = other.get("data_offsets"), offsets
        case 5:
            header[rng.choice(("x", "", "lm_head", "lm_head.weight", "wte", "\x1b[2J", "a" * 500))] = header.pop(name)
        case 6:
            header["__metadata__"] = rng.choice(
                (None, [], "", 0, {}, {"a": 1}, {"a": "b"}, {"format": "mlx"}, {"": "x"})
            )
        case 7:
            entry[rng.choice(("extra", "offsets", "Dtype"))] = rng.choice(VALUES)
        case _ if isinstance(shape, list) and isinstance(offsets, list):  # a tensor of no elements with huge dimensions
            header[name + "0"] = {
                "dtype": rng.choice(DTYPES),
                "shape": [0, *rng.sample(SIZES, 2)],
                "data_offsets": offsets[-1:] * 2,
            }
    return header


def read(directory: Path) -> object:
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.checkpoint.files import LocalFiles
    from tiebeam.checkpoint.formats.safetensors import read_header
    from tiebeam.doctor import diagnose
    from tiebeam.errors import TiebeamError

    files = LocalFiles(directory)
    header = read_header(files, FILE)
    (directory / "config.json").write_text('{"model_type": "llama", "vocab_size": 8, "hidden_size": 3}')
    with suppress(TiebeamError):  # further questions to a header that was accepted
        diagnose(directory, rows=True)
    with suppress(TiebeamError):
        checkpoint = open_checkpoint(directory / FILE)
        for name, info in checkpoint.tensors.items():
            with suppress(TiebeamError):
                assert checkpoint.tensor(name).shape == info.shape
    return {
        name: (info.dtype, list(info.shape), files.read(FILE, info.begin, info.end))
        for name, info in header.tensors.items()
    }


def reference(directory: Path) -> object:
    from safetensors import deserialize

    raw = (directory / FILE).read_bytes()
    return {name: (entry["dtype"], entry["shape"], bytes(entry["data"])) for name, entry in deserialize(raw)}
