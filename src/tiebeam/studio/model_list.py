"""What the studio may read: the models and runs named on the command line, and those below --root. Nothing else.

A request never carries a path to be opened. It carries an id, which is looked up among what was found; the one
exception, a path dropped into the page, is resolved with all its links and refused unless it lies below the root.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tiebeam.checkpoint.file_roles import WEIGHT_SUFFIXES, holds_weights
from tiebeam.errors import BadRequest, TiebeamError, UnreadableInput

METRICS, RUN, REPORT = "metrics.jsonl", "run.json", "report.json"
_DEPTH, _MOST = 5, 400  # how deep below the root is looked, and how many are listed


class NotFound(TiebeamError):
    """No model or run has that id."""


class Forbidden(TiebeamError):
    """It exists, perhaps, but the studio was not told to read it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A model or a run that may be read. `where` is its resolved path, or its name on the Hub."""

    id: str
    name: str
    where: str
    named: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Shelf:
    def __init__(self, named: tuple[str, ...] = (), root: Path | None = None) -> None:
        self.root = None if root is None else _real(root)
        if self.root is not None and not self.root.is_dir():
            raise UnreadableInput(f"--root {root} is not a directory")
        self.named = tuple(_resolved(source) for source in named)

    def models(self) -> list[Entry]:
        """Named ones first, then what lies below the root, by name."""
        found = {entry.id: entry for entry in self._named() if not _only_runs(entry.where)}
        for run in self.runs():  # a finished run is a model, too
            if is_model(Path(run.where)):
                found.setdefault(run.id, run)
        for path in self._below(is_model):
            entry = self._entry(str(path), named=False)
            found.setdefault(entry.id, entry)
        return list(found.values())[:_MOST]

    def comparisons(self) -> list[Path]:
        """The directories above the runs that hold a comparison's report."""
        above = dict.fromkeys(Path(run.where).parent for run in self.runs())
        return [path for path in above if (path / REPORT).is_file() and self.allows(path / REPORT)]

    def runs(self) -> list[Entry]:
        found: dict[str, Entry] = {}
        for entry in self._named():
            for path in _walk(Path(entry.where), _is_run, depth=3) if Path(entry.where).is_dir() else ():
                run = self._entry(str(path), named=True, beside=Path(entry.where).parent)
                found.setdefault(run.id, run)
        for path in self._below(_is_run):
            run = self._entry(str(path), named=False)
            found.setdefault(run.id, run)
        return list(found.values())[:_MOST]

    def model(self, id: str) -> Entry:
        return self._pick(self.models(), id, "model")

    def run(self, id: str) -> Entry:
        return self._pick(self.runs(), id, "run")

    def allows(self, path: Path) -> bool:
        """Whether a path, its links resolved, lies below the root or below something named."""
        real = _real(path)
        tops = [Path(where) for where in self.named if not _is_hub(where)] + ([self.root] if self.root else [])
        return any(real.is_relative_to(top) for top in tops)

    def find(self, path: str) -> Entry:
        """A path typed or dropped into the page -> the entry it stands for, if it may be read."""
        if not path.strip() or "\0" in path:
            raise BadRequest("give the path of a model")
        try:
            real = _real(Path(path.strip().removeprefix("file://")).expanduser())
        except (RuntimeError, ValueError):
            raise BadRequest(f"{path[:200]!r} is not a path") from None
        for entry in self._named():
            if entry.where in (path, str(real)):
                return entry
        if self.root is None or not real.is_relative_to(self.root):
            below = f"below {self.root}" if self.root else "named when it was started"
            raise Forbidden(
                f"the studio reads only what is {below}; start it again with this model on its command line, "
                "or with --root at a directory above it"
            )
        if not real.exists():
            raise UnreadableInput(f"{real} does not exist")
        if not is_model(real):
            raise UnreadableInput(f"{real} is not a model: it holds no safetensors, GGUF, PyTorch or npz weights")
        return self._entry(str(real), named=False)

    def _pick(self, entries: list[Entry], id: str, kind: str) -> Entry:
        for entry in entries:
            if entry.id == id:
                return entry
        raise NotFound(f"no {kind} here has the id {id[:40]!r}")

    def _named(self) -> Iterator[Entry]:
        for where in self.named:
            yield self._entry(where, named=True)

    def _entry(self, where: str, named: bool, beside: Path | None = None) -> Entry:
        path, start = Path(where), beside if named else self.root
        name = path.name or where
        if start is not None and path.is_relative_to(start) and path != start:
            name = path.relative_to(start).as_posix()
        if _is_hub(where):
            name = where
        return Entry(hashlib.sha256(os.fsencode(where)).hexdigest()[:12], name, where, named)

    def _below(self, wanted: Any) -> Iterator[Path]:
        if self.root is not None:
            yield from _walk(self.root, wanted, _DEPTH)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _is_hub(where: str) -> bool:
    return where.startswith("hf://") or not where.startswith(os.sep)


def _resolved(source: str) -> str:
    path = Path(source).expanduser()
    if not source.startswith("hf://") and path.exists():
        return str(_real(path))
    if source.startswith("hf://") or re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", source):
        return source
    raise UnreadableInput(f"{source} does not exist, and is not a model on the Hub (org/name)")


def _files(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_file()]
    except OSError:
        return []


def is_model(path: Path) -> bool:
    if path.is_dir():
        return any(map(holds_weights, _files(path)))
    return path.name.endswith(WEIGHT_SUFFIXES)


def _is_run(path: Path) -> bool:
    return path.is_dir() and not {METRICS, RUN}.isdisjoint(_files(path))


def _only_runs(where: str) -> bool:
    """A directory without weights that holds runs: a comparison, or a run that has saved nothing yet."""
    path = Path(where)
    return path.is_dir() and not is_model(path) and any(_walk(path, _is_run, depth=3))


def _walk(top: Path, wanted: Any, depth: int) -> Iterator[Path]:
    """Directories that are `wanted`, breadth first and in order; links to directories are not followed.

    Several GGUF files in one directory are several models, so they are listed one by one.
    """
    level = [top]
    for _ in range(depth + 1):
        below: list[Path] = []
        for path in level:
            if wanted is is_model and len(ggufs := [n for n in _files(path) if n.endswith(".gguf")]) > 1:
                yield from (path / name for name in sorted(ggufs) if not (path / name).is_symlink())
            elif wanted(path):
                yield path
            try:
                with os.scandir(path) as entries:
                    names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and e.name[0] != ".")
            except OSError:
                continue
            below += [path / name for name in names]
        level = below[:4000]
