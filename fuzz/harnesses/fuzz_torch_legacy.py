"""PyTorch files from before 1.6 (five pickles, then the storages), against torch.load(weights_only=True)."""

from __future__ import annotations

import io
import pickletools
from contextlib import suppress
from random import Random

from cases import Case
from harnesses import fuzz_torch_zip
from mutations import mutate_bytes
from pickle_mutations import mutate_pickle

FILE = fuzz_torch_zip.FILE
PICKLES = 5


def seeds() -> list[Case]:
    import torch

    found = []
    for model in fuzz_torch_zip.models():
        if "torch.uint16" in model:
            continue  # torch cannot load the newer types from a legacy file
        out = io.BytesIO()
        torch.save(model, out, _use_new_zipfile_serialization=False)
        found.append({FILE: out.getvalue()})
    return found


def pickles(raw: bytes) -> list[bytes]:
    """The five pickles and the rest; fewer if one is damaged."""
    parts: list[bytes] = []
    stream = io.BytesIO(raw)
    with suppress(Exception):  # damaged before
        while len(parts) < PICKLES:
            begin = stream.tell()
            for _ in pickletools.genops(stream):
                pass
            parts.append(raw[begin : stream.tell()])
    return [*parts, raw[sum(map(len, parts)) :]]


def mutate(case: Case, rng: Random) -> Case:
    parts = pickles(case[FILE])
    if len(parts) <= PICKLES or rng.random() < 0.1:
        return {FILE: mutate_bytes(case[FILE], rng)}
    which = rng.choices(range(PICKLES + 1), (1, 1, 1, 10, 3, 3))[0]
    parts[which] = mutate_bytes(parts[which], rng) if which == PICKLES else mutate_pickle(parts[which], rng)
    return {FILE: b"".join(parts)}


read, reference, one_by_one = fuzz_torch_zip.read, fuzz_torch_zip.reference, fuzz_torch_zip.one_by_one
