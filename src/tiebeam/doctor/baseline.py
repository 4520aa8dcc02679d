"""A file of accepted findings: CI fails only on what is new.

The file maps each model to the codes that were accepted for it. A local model is named relative to the directory of the
file, with forward slashes, so the file is the same on every machine and can be committed; a model on the Hub or behind
a URL is named as it was given.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiebeam._fs import write_json
from tiebeam.errors import BadRequest, UnreadableInput

_KIND = "tiebeam doctor baseline"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The accepted findings of a baseline file: {model: codes}."""

    path: Path
    accepted: Mapping[str, frozenset[str]]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Baseline:
        """Read a baseline; a missing file or another document is an error."""
        from tiebeam.checkpoint.files import LocalFiles
        from tiebeam.checkpoint.json_files import read_json

        where = Path(path)
        if not where.is_file():
            raise UnreadableInput(f"there is no baseline {path}; write it first with write_baseline=True")
        document = read_json(LocalFiles(where.parent), where.name)
        accepted = document.get("accepted")
        if document.get("kind") != _KIND or not isinstance(accepted, dict):
            raise BadRequest(f"{path} is not a baseline of tiebeam doctor; name another file")
        return cls(where, {name: frozenset(map(str, codes)) for name, codes in accepted.items()})

    @classmethod
    def write(cls, path: str | os.PathLike[str], found: Iterable[tuple[str, Iterable[str]]]) -> Baseline:
        """Accept these codes of these models. An existing file is replaced only if it is a baseline."""
        where = Path(path)
        if where.exists():
            cls.read(where)
        codes = {_key(model, where): sorted(set(listed)) for model, listed in found}
        document = {"kind": _KIND, "accepted": {name: codes[name] for name in sorted(codes) if codes[name]}}
        write_json(where, document)
        return cls(where, {name: frozenset(listed) for name, listed in codes.items()})

    def accepts(self, model: str, code: str) -> bool:
        return code in self.accepted.get(_key(model, self.path), ())

    def to_dict(self) -> dict[str, Any]:
        return {name: sorted(codes) for name, codes in self.accepted.items()}


def _key(model: str, baseline: Path) -> str:
    """The model's name in the file: relative to the file if it is a path, as given if it is not."""
    path = Path(model)
    if "://" in model or not path.exists():
        return model
    try:
        return Path(os.path.relpath(path.resolve(), baseline.resolve().parent)).as_posix()
    except ValueError:  # another drive of Windows
        return path.resolve().as_posix()
