"""A case: the files of one try, as {relative path: content}. On disk it is a directory, or a file if it has one.

A harness is a module `harnesses/fuzz_FORMAT.py`. It has:

    FILE                      the name of the file, if a case is one file; else ""
    seeds() -> list[Case]     tiny valid cases, made by the reference library
    mutate(case, rng) -> Case  a damaged copy; most of them should be damaged in one place of the structure
    read(directory) -> object  our reader on the case in `directory`; TiebeamError means refused
    COVERED                   optional: the modules whose coverage guides atheris; ("tiebeam.checkpoint",) if absent
    reference(directory)      optional: the reference reader; any Exception means refused. Where both accept, what the
                              two return must be equal
    one_by_one(directory, ours)  optional: where the reference refuses the file, what it makes of each part that we
                              returned; must be equal to `ours`
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from random import Random
from typing import Protocol, cast

Case = dict[str, bytes]
HERE = Path(__file__).resolve().parent
REGRESSIONS = HERE / "regressions"


class Harness(Protocol):
    FILE: str

    def seeds(self) -> list[Case]: ...

    def mutate(self, case: Case, rng: Random) -> Case: ...

    def read(self, directory: Path) -> object: ...


def formats() -> list[str]:
    return sorted(path.stem.removeprefix("fuzz_") for path in (HERE / "harnesses").glob("fuzz_*.py"))


def load_harness(format: str) -> Harness:
    return cast(Harness, importlib.import_module(f"harnesses.fuzz_{format}"))


def size(case: Case) -> int:
    return sum(map(len, case.values()))


def write(case: Case, directory: Path) -> None:
    """Make `directory` hold exactly this case, in new inodes: a reference reader may still map the old ones."""
    for old in directory.rglob("*"):
        if not old.is_dir() or old.is_symlink():
            old.unlink()
    for name, raw in case.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)


def save(case: Case, path: Path, file: str) -> Path:
    """Keep a case as a regression: a file if the harness's cases are one file, else a directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if file and set(case) == {file}:
        path.write_bytes(case[file])
    else:
        path.mkdir(exist_ok=True)
        write(case, path)
    return path


def load(path: Path, file: str) -> Case:
    if path.is_dir():
        return {p.relative_to(path).as_posix(): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
    return {file: path.read_bytes()}


def pack(case: Case) -> bytes:
    """A case as one string of bytes, for atheris."""
    return json.dumps({name: len(raw) for name, raw in case.items()}).encode() + b"\n" + b"".join(case.values())


def unpack(raw: bytes) -> Case:
    head, _, rest = raw.partition(b"\n")
    case, at = {}, 0
    for name, length in json.loads(head).items():
        case[name] = rest[at : at + length]
        at += length
    return case
