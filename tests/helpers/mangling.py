"""Deterministic damage to files: bit flips, truncation, splices and overwritten fields."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tiebeam.checkpoint import open_checkpoint
from tiebeam.errors import TiebeamError


def mangled(raw: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """`count` damaged copies of `raw`."""
    rng = random.Random(seed)
    for i in range(count):
        data = bytearray(raw)
        at = rng.randrange(len(data))
        match i % 6:
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                for _ in range(rng.randrange(1, 20)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
            case 2:
                del data[at:]
            case 3:
                del data[at : at + rng.randrange(1, 40)]
            case 4:
                source = rng.randrange(len(data))
                data[at:at] = data[source : source + rng.randrange(1, 60)]
            case 5:
                width = rng.choice((1, 2, 4, 8))
                extreme = rng.choice((b"\xff" * 8, b"\x00" * 8, b"\xff" * 7 + b"\x7f", b"\x00" * 7 + b"\x80"))
                data[at : at + width] = extreme[-width:]
        yield bytes(data)


def survives(path: Path, raw: bytes) -> bool:
    """Whether the damaged file still opens and reads; exceptions other than TiebeamError are raised."""
    path.write_bytes(raw)
    try:
        checkpoint = open_checkpoint(path)
        for name, info in checkpoint.tensors.items():
            value = checkpoint.tensor(name)
            assert isinstance(value, np.ndarray)
            assert value.shape == info.shape
    except TiebeamError as error:
        return not one_sentence(error)
    return True


def one_sentence(error: TiebeamError) -> bool:
    """Check that the message is one sentence; always True."""
    assert str(error)
    assert "\n" not in str(error)
    return True


def damage_pickle(path: Path, count: int, seed: int) -> None:
    """Damage only the pickle in a torch archive; each of `count` copies must give a result or one sentence."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    program = next(member for member in members if member.endswith("data.pkl"))
    for damaged in mangled(members[program], count, seed=seed):
        with zipfile.ZipFile(path, "w") as archive:
            for member, raw in members.items():
                archive.writestr(member, damaged if member == program else raw)
        survives(path, path.read_bytes())
