"""A directory that a process works in for minutes and may resume: a run, a comparison, the state of a distillation.

One process at a time holds its lock, from the first file to the last. What killed processes left is removed first.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tiebeam._fs.lock import DirectoryLock, lock_directory
from tiebeam._fs.os_errors import explaining
from tiebeam._fs.stage import clear_abandoned, in_use, make_parents, staging
from tiebeam._fs.targets import Kind, check_replaceable, is_empty_directory
from tiebeam.errors import BadRequest


def occupy(path: Path, kind: Kind, force: bool = False) -> DirectoryLock:
    """Lock the directory `path`, which is made if it is missing; release the lock at the end.

    `force` replaces an earlier output of this kind by an empty directory, atomically. A kill leaves the old one, the
    empty one, or what was begun in it.
    """
    path = Path(os.path.realpath(path))
    make_parents(path)
    with explaining(path):
        if path.exists() and not path.is_dir():
            raise BadRequest(f"{path} is a file; name a directory")
        clear_abandoned(path)
        lock = _lock(path)
        kind.clear_temporary(path)
        if not force or is_empty_directory(path):
            return lock
    lock.release()
    check_replaceable(path, force, kind)
    with staging(path, force=True) as stage:
        stage.commit()
        return stage.detach_lock()


def _lock(path: Path) -> DirectoryLock:
    while True:
        path.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # another process replaces it at this moment
            lock = lock_directory(path)
            if lock is None:
                raise in_use(path)
            if lock.current:
                return lock
            lock.release()
