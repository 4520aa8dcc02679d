"""Lock a directory for one process at a time. The system releases the lock when the process ends, however it ends.

Linux and macOS lock the directory itself (`flock`), and no file is left behind. Windows cannot lock a directory: there
the lock is on the first byte of `.NAME.lock` beside it (`msvcrt`), and the file is removed with the lock. A system or a
file system without locks gives `held=False`: work proceeds unprotected, and no directory is ever taken for abandoned.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tiebeam._fs.short_names import shortened

_HAS_FLOCK = find_spec("fcntl") is not None
_HAS_MSVCRT = find_spec("msvcrt") is not None
_POLL = 0.1  # seconds between two attempts where the system cannot wait


@dataclass(slots=True)
class DirectoryLock:
    """A locked directory. `held` is False where the system has no locks."""

    path: Path
    held: bool
    _handle: int = -1
    _identity: os.stat_result | None = None
    _file: Path | None = None
    """The file beside the directory that is locked in its place."""

    @property
    def current(self) -> bool:
        """Whether `path` still is the locked directory: another process may have renamed or removed it meanwhile."""
        if self._identity is None:
            return self.path.exists()
        try:
            return os.path.samestat(self._identity, self.path.stat())
        except OSError:
            return False

    def follow(self, path: Path) -> None:
        """The locked directory was renamed to `path`; a lock beside it moves there too."""
        if self._file is not None:
            moved = _lock_beside(path, None)
            old, self._handle, self._file = (self._handle, self._file), -1, None
            if moved is not None:
                self._handle, self._file = moved._handle, moved._file
            _remove(*old)
        self.path = path

    def release(self) -> None:
        if self._handle >= 0:
            _remove(self._handle, self._file)
            self._handle, self._file = -1, None


def _remove(handle: int, file: Path | None) -> None:
    os.close(handle)
    if file is not None:
        with suppress(OSError):  # another process has it open
            file.unlink()


def lock_directory(path: Path, waiting: Callable[[], None] | None = None) -> DirectoryLock | None:
    """Lock an existing directory. If another process holds it: None, or with `waiting`, call that once and wait."""
    if _HAS_FLOCK:
        return _lock_itself(path, waiting)
    return _lock_beside(path, waiting) if _HAS_MSVCRT else DirectoryLock(path, held=False)


def _lock_itself(path: Path, waiting: Callable[[], None] | None) -> DirectoryLock | None:
    import fcntl

    handle = os.open(path, os.O_RDONLY)
    identity = os.fstat(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if waiting is None:
            os.close(handle)
            return None
        try:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        except BaseException:
            os.close(handle)
            raise
    except OSError:  # a file system without locks
        return DirectoryLock(path, held=False, _handle=handle, _identity=identity)
    return DirectoryLock(path, held=True, _handle=handle, _identity=identity)


def _lock_beside(path: Path, waiting: Callable[[], None] | None) -> DirectoryLock | None:
    identity = path.stat()
    file = path.with_name(f".{shortened(path.name)}.lock")
    handle = _lock_file(file)
    if handle is None and waiting is not None:
        waiting()
        while handle is None:
            time.sleep(_POLL)
            handle = _lock_file(file)
    return None if handle is None else DirectoryLock(path, True, _handle=handle, _identity=identity, _file=file)


def _lock_file(file: Path) -> int | None:
    """A descriptor of the locked file, which is made if it is missing; None if another process holds it."""
    msvcrt = import_module("msvcrt")
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except OSError:
        os.close(handle)
        return None
    return handle


def remove_lock_file(file: Path) -> None:
    """Remove a lock file that no process holds."""
    handle = _lock_file(file) if _HAS_MSVCRT else None
    if handle is not None:
        _remove(handle, file)
