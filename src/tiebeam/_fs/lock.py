"""Lock a directory for one process at a time.

The lock is `flock` on the directory itself: no lock file is left behind, and the kernel releases the lock when the
process ends, however it ends. Systems without `fcntl` (Windows) and file systems without locks give a lock with
`held=False`: work proceeds unprotected, and no directory is ever taken for abandoned.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_HAS_FLOCK = find_spec("fcntl") is not None


@dataclass(slots=True)
class DirectoryLock:
    """A locked directory. `held` is False where the system has no locks."""

    path: Path
    held: bool
    _handle: int = -1

    @property
    def current(self) -> bool:
        """Whether `path` still is the locked directory: another process may have renamed or removed it meanwhile."""
        if self._handle < 0:
            return self.path.exists()
        try:
            return os.path.samestat(os.fstat(self._handle), self.path.stat())
        except OSError:
            return False

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def lock_directory(path: Path, waiting: Callable[[], None] | None = None) -> DirectoryLock | None:
    """Lock an existing directory. If another process holds it: None, or with `waiting`, call that once and wait."""
    if not _HAS_FLOCK:
        return DirectoryLock(path, held=False)
    import fcntl

    handle = os.open(path, os.O_RDONLY)
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
        return DirectoryLock(path, held=False, _handle=handle)
    return DirectoryLock(path, held=True, _handle=handle)
