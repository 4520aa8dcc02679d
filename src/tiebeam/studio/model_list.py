"""List the models and runs that the studio may read: those named on the command line and those below --root.

A request carries an id, never a path to open. The one exception is a path typed or dropped into the page: it is
resolved with all its symlinks and refused unless it is below the root.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tiebeam.checkpoint.file_roles import WEIGHT_SUFFIXES, holds_weights
from tiebeam.errors import BadRequest, TiebeamError, UnreadableInput

METRICS, RUN, REPORT = "metrics.jsonl", "run.json", "report.json"
_MAX_DEPTH, _MAX_LISTED = 5, 400  # levels below the root, and number of models or runs


class NotFound(TiebeamError):
    """No model or run has that id."""


class Forbidden(TiebeamError):
    """The path may exist, but the studio was not started with it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model or run that the studio may read. `where` is its resolved path, or its name on the Hub."""

    id: str
    name: str
    where: str
    named: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class ModelList:
    """The models and runs that the studio may read."""

    def __init__(self, named: tuple[str, ...] = (), root: Path | None = None) -> None:
        self.root = None if root is None else _real(root)
        if self.root is not None and _kind(self.root) != "directory":
            raise UnreadableInput(f'root="{root}" is not a directory')
        self.named = tuple(_resolved(source) for source in named)
        self._found: OrderedDict[str, Source] = OrderedDict()  # by /api/find; the walk below the root lists fewer

    def models(self) -> list[Source]:
        """Named models first, then those below the root by name."""
        found = {
            source.id: source
            for source in self._named()
            if not _only_runs(source.where) and not _nothing_in(source.where)
        }
        for run in self.runs():  # a finished run is also a model
            if is_model(Path(run.where)):
                found.setdefault(run.id, run)
        for path in self._below(is_model):
            source = self._source(str(path), named=False)
            found.setdefault(source.id, source)
        return list(found.values())[:_MAX_LISTED]

    def empty(self) -> list[str]:
        """Directories named on the command line, or the root, with no model and no run in them."""
        found = [where for where in self.named if _nothing_in(where)]
        if self.root and not any(True for _ in self._below(is_model)) and not any(True for _ in self._below(_is_run)):
            found.append(str(self.root))
        return found

    def comparisons(self) -> list[Source]:
        """Directories with a comparison report, one or two levels above the runs."""
        parents = [Path(run.where).parent for run in self.runs()]
        above = dict.fromkeys([*parents, *(path.parent for path in parents)])
        found = [path for path in above if _kind(path / REPORT) == "file" and self.allows(path / REPORT)]
        return [self._source(str(path), named=False) for path in found]

    def comparison(self, id: str) -> Source:
        return self._pick(self.comparisons(), id, "comparison")

    def runs(self) -> list[Source]:
        found: dict[str, Source] = {}
        for source in self._named():
            for path in (
                _find_directories(Path(source.where), _is_run, depth=3) if _kind(source.where) == "directory" else ()
            ):
                run = self._source(str(path), named=True, relative_to=Path(source.where).parent)
                found.setdefault(run.id, run)
        for path in self._below(_is_run):
            run = self._source(str(path), named=False)
            found.setdefault(run.id, run)
        return list(found.values())[:_MAX_LISTED]

    def model(self, id: str) -> Source:
        found = self._found.get(id)
        if found is not None and str(_real(Path(found.where))) == found.where and is_model(Path(found.where)):
            return found
        return self._pick(self.models(), id, "model")

    def run(self, id: str) -> Source:
        return self._pick(self.runs(), id, "run")

    def allows(self, path: Path) -> bool:
        """Whether a path, with symlinks resolved, is below the root or below a named source."""
        real = _real(path)
        tops = [Path(where) for where in self.named if not _is_hub(where)] + ([self.root] if self.root else [])
        return any(real.is_relative_to(top) for top in tops)

    def find(self, path: str) -> Source:
        """Find the model at a path typed or dropped into the page, if the studio may read it."""
        if not path.strip() or "\0" in path:
            raise BadRequest("path is empty; enter the path of a model")
        try:
            real = _real(Path(path.strip().removeprefix("file://")).expanduser())
        except (RuntimeError, ValueError):
            raise BadRequest(f"{path[:200]!r} is not a path") from None
        for source in self._named():
            if source.where in (path, str(real)) and (_is_hub(source.where) or is_model(real)):
                return source
        if self.root is None or not real.is_relative_to(self.root):
            allowed = f"models below {self.root}" if self.root else "models named on its command line"
            raise Forbidden(
                f"the studio reads only {allowed}; restart it with this model on the command line, "
                "or with --root set to a directory above it"
            )
        if not _kind(real):
            raise UnreadableInput(f"{str(real)[:500]} does not exist")
        if not is_model(real):
            raise UnreadableInput(f"{real} is not a model: it has no safetensors, GGUF, PyTorch or npz weights")
        source = self._source(str(real), named=False)
        self._found[source.id] = source
        if len(self._found) > _MAX_LISTED:
            self._found.popitem(last=False)
        return source

    def _pick(self, sources: list[Source], id: str, kind: str) -> Source:
        for source in sources:
            if source.id == id:
                return source
        listed = "runs" if kind == "comparison" else f"{kind}s"
        raise NotFound(f"no {kind} has the id {id[:40]!r}; /api/{listed} lists them")

    def _named(self) -> Iterator[Source]:
        for where in self.named:
            yield self._source(where, named=True)

    def _source(self, where: str, named: bool, relative_to: Path | None = None) -> Source:
        path, start = Path(where), relative_to if named else self.root
        name = path.name or where
        ggufs = [] if _is_hub(where) else _ggufs(path)
        if start is not None and path.is_relative_to(start) and path != start:
            name = path.relative_to(start).as_posix()
        if _is_hub(where):
            name = where
        if len(ggufs) == 1:  # the directory's name alone rarely says which model it has
            name = f"{name}/{ggufs[0]}"
        return Source(hashlib.sha256(os.fsencode(where)).hexdigest()[:12], name, where, named)

    def _below(self, wanted: Any) -> Iterator[Path]:
        if self.root is not None:
            yield from _find_directories(self.root, wanted, _MAX_DEPTH)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _kind(path: str | Path) -> str:
    """ "directory", "file", "other", or nothing. Never an error, which pathlib raises for a name that is too long."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return ""
    return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def _is_hub(where: str) -> bool:
    return where.startswith("hf://") or not where.startswith(os.sep)


def _resolved(source: str) -> str:
    path = Path(source).expanduser()
    if not source.startswith("hf://") and _kind(path):
        return str(_real(path))
    if source.startswith("hf://") or re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", source):
        return source
    raise UnreadableInput(f"{source} does not exist, and is not a Hub model (org/name)")


def _files(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if _kind(entry.path) == "file"]
    except OSError:
        return []


def _ggufs(path: Path) -> list[str]:
    return sorted(name for name in _files(path) if name.endswith(".gguf"))


def is_model(path: Path) -> bool:
    if _kind(path) == "directory":
        return any(map(holds_weights, _files(path)))
    return path.name.endswith(WEIGHT_SUFFIXES)


def _is_run(path: Path) -> bool:
    return _kind(path) == "directory" and not {METRICS, RUN}.isdisjoint(_files(path))


def _only_runs(where: str) -> bool:
    """Whether a directory has runs but no weights: a comparison, or a run that has not saved its model yet."""
    path = Path(where)
    return _kind(path) == "directory" and not is_model(path) and any(_find_directories(path, _is_run, depth=3))


def _nothing_in(where: str) -> bool:
    """Whether this is a directory with neither weights nor runs."""
    return _kind(where) == "directory" and not is_model(Path(where)) and not _only_runs(where)


def _find_directories(top: Path, wanted: Any, depth: int) -> Iterator[Path]:
    """Yield directories for which `wanted` is true, breadth first in name order, without following symlinks.

    Several GGUF files in one directory are several models, so each is listed.
    """
    level = [top]
    for _ in range(depth + 1):
        below: list[Path] = []
        for path in level:
            if wanted is is_model and len(ggufs := _ggufs(path)) > 1:
                yield from (path / name for name in ggufs if not (path / name).is_symlink())
            elif wanted(path):
                yield path
            try:
                with os.scandir(path) as entries:
                    names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and e.name[0] != ".")
            except OSError:
                continue
            below += [path / name for name in names]
        level = below[:4000]
