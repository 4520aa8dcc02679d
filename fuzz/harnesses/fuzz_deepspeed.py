"""DeepSpeed folders, as DeepSpeed 0.19.8 wrote them. There is no reference: DeepSpeed unpickles them."""

from __future__ import annotations

import tarfile
from pathlib import Path
from random import Random

from cases import HERE, Case
from harnesses import fuzz_dcp
from mutations import mutate_bytes, mutate_json
from pickle_mutations import archive, members, mutate_directory, mutate_pickle

FILE = ""
WRITTEN = HERE.parent / "tests/checkpoint/distributed/deepspeed.tar.xz"


def seeds() -> list[Case]:
    cases: dict[str, Case] = {"zero2_tied": {}, "zero3_tied": {}, "zero3_untied": {}}
    with tarfile.open(WRITTEN) as source:
        for info in source:
            case, _, name = info.name.partition("/")
            handle = source.extractfile(info) if case in cases and name != "fp32.safetensors" else None
            if handle is not None:
                cases[case][name] = handle.read()
    return list(cases.values())


def mutate(case: Case, rng: Random) -> Case:
    states = [name for name in case if name.endswith(".pt")]
    name = rng.choice(states if states and rng.random() < 0.9 else list(case))
    contents = members(case[name])
    kind = rng.random()
    if name.endswith(".json"):
        return {**case, name: mutate_json(case[name], rng)}
    if contents is None or kind < 0.1:
        return {**case, name: mutate_bytes(case[name], rng)}
    if kind < 0.2:
        return {**case, name: mutate_directory(case[name], rng)}
    if kind < 0.25:
        return {key: value for key, value in case.items() if key != name}
    program = next((member for member in contents if member.endswith("data.pkl")), None)
    if program:
        contents[program] = mutate_pickle(contents[program], rng)
    return {**case, name: archive(contents, rng)}


def read(directory: Path) -> object:
    return fuzz_dcp.read(directory)
