"""What a target may be: new, empty, or with `force` an earlier output of the same kind and nothing else."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tiebeam._fs.os_errors import explaining
from tiebeam.errors import BadRequest, Unwritable

_TEMPORARY = re.compile(r"\.(.+?)(\.[0-9a-f]+)?\.(part|lock)")  # 0.1 had a number in it
_STAGING = re.compile(r"\.(.+)\.tiebeam-[0-9a-f]+(-old)?")


@dataclass(frozen=True, slots=True)
class Kind:
    """What `force` may replace.

    name         for messages: "a run"
    is_ours      whether a directory, or a file where the output is one, was written by us
    owns         whether a file in such a directory, by its relative name, is part of what we write
    """

    name: str
    is_ours: Callable[[Path], bool]
    owns: Callable[[str], bool] = lambda name: False

    def refusal(self, target: Path) -> str | None:
        """Why `target` may not be replaced; None if it is ours."""
        if target.is_symlink():
            return f"{target} is a symbolic link, which force=True does not replace; remove it first"
        if not self.is_ours(target):
            return f"{target} is not {self.name}, and force=True replaces nothing else; remove it yourself"
        stranger = self.stranger(target) if target.is_dir() else None
        if stranger is not None:
            return f"{target} holds {stranger}, which is not part of {self.name}; move it away, or remove it yourself"
        return None

    def stranger(self, directory: Path) -> str | None:
        """The first file in `directory` that is not ours."""
        for where, folders, names in os.walk(directory):
            inside = Path(where).relative_to(directory)
            links = [folder for folder in folders if Path(where, folder).is_symlink()]
            folders[:] = sorted(folder for folder in folders if not self.is_temporary(folder))
            for name in sorted([*names, *links]):
                relative = (inside / name).as_posix()
                if Path(where, name).is_symlink() or not (self.owns(relative) or self.is_temporary(name)):
                    return relative
        return None

    def is_temporary(self, name: str) -> bool:
        """Whether a file or folder is what a killed process left of something that we write."""
        found = _TEMPORARY.fullmatch(name) or _STAGING.fullmatch(name)
        return found is not None and self.owns(found[1])

    def clear_temporary(self, directory: Path) -> None:
        """Remove the temporary files that killed processes left; the caller holds the directory's lock."""
        for path in directory.iterdir():
            if self.is_temporary(path.name) and not _STAGING.fullmatch(path.name):  # staging has its own locks
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


NOTHING = Kind("known here", lambda path: False)
"""The kind of a target that `force` never replaces."""


def check_target(source: Path, target: Path, force: bool, kind: Kind = NOTHING) -> None:
    """Refuse a target that is the source, contains it, is inside it, or exists (with `force`: unless it is `kind`)."""
    real_source, real_target = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    with explaining(target):
        if real_target == real_source or _is_same(real_target, real_source):
            raise BadRequest(f"{target} is the source itself, which is never overwritten; name another target")
    if _is_inside(real_target, real_source):
        raise BadRequest(f"{target} is inside the source {source}; name a target outside it")
    if _is_inside(real_source, real_target):
        raise BadRequest(f"the source {source} is inside {target}; name a target that does not contain it")
    check_replaceable(target, force, kind)


def _is_inside(path: Path, directory: Path) -> bool:
    """Whether `path` is below `directory`, also in another spelling: Windows and macOS ignore case."""
    if path.is_relative_to(directory):
        return True
    try:
        return any(_is_same(parent, directory) for parent in path.parents)
    except OSError:
        return False


def _is_same(a: Path, b: Path) -> bool:
    """Whether both exist and are one file or directory, also in another spelling.

    On some disks each spelling has its own inode (exFAT under FUSE), so the names in the directories are compared too.
    """
    if not (a.exists() and b.exists()):
        return False
    return a.samefile(b) or (str(a).casefold() == str(b).casefold() and _as_listed(a) == _as_listed(b))


def _as_listed(path: Path) -> Path:
    """`path` with every name as its directory lists it."""
    found = Path(path.anchor)
    for name in path.parts[1:]:
        listed = [entry.name for entry in found.iterdir()]
        if name not in listed:
            name = next((other for other in listed if other.casefold() == name.casefold()), name)
        found /= name
    return found


def check_replaceable(target: Path, force: bool, kind: Kind) -> None:
    """Refuse a target that exists and is not empty, unless with `force` it is `kind`."""
    with explaining(target):
        if not os.path.lexists(target) or is_empty_directory(target):
            return
        if not force:
            raise BadRequest(f"{target} exists; choose another name, or pass force=True to replace it")
        refusal = kind.refusal(target)
    if refusal:
        raise BadRequest(refusal)


def check_space(target: Path, needed: int) -> None:
    """Raise before the first byte is written if the disk cannot hold the result."""
    try:
        free = shutil.disk_usage(target.parent).free
    except OSError:
        return
    if needed > free:
        raise Unwritable(
            f"{target} needs {needed:,} bytes and the disk has {free:,} free; free some space, or use another disk"
        )


def is_empty_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(os.scandir(path))
