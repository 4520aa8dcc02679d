"""Build a corpus in a hidden directory beside the target, then rename it into place.

The directory .NAME.partial survives an interruption, so that the next build resumes from it. The process that builds
in it holds its lock.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tiebeam._fs import DirectoryLock, Kind, exchange, lock_directory, undo_exchange
from tiebeam.errors import BadRequest

_OURS = re.compile(r"corpus\.json|state\.json|tokenizer\.(json|model)|(train|val)_\d{6,}\.bin")
_KIND = Kind("a corpus", Path.is_dir, lambda name: bool(_OURS.fullmatch(name)))


def refuse_foreign(target: Path) -> None:
    """Refuse a target with files that no corpus build wrote: a build replaces only corpora."""
    if target.is_dir():
        foreign = _KIND.stranger(target)
        if foreign is not None:
            raise BadRequest(f"{target} holds {foreign}, which is not part of a corpus; choose another directory")
    elif target.exists():
        raise BadRequest(f"{target} is not a directory; choose another directory")


@contextlib.contextmanager
def partial_directory(target: Path, waiting: Callable[[], None]) -> Iterator[Path]:
    """The directory to build `target` in, locked for one process at a time."""
    lock = _acquire(_partial(target), waiting)
    try:
        undo_exchange(lock.path, target)
        yield lock.path
    finally:
        with contextlib.suppress(OSError):
            lock.path.rmdir()  # only if it is empty
        lock.release()


def clear_partial(target: Path) -> None:
    """Remove the old corpus that a process, killed right after it replaced it, left behind."""
    if not _partial(target).is_dir():
        return
    with contextlib.suppress(OSError):
        lock = lock_directory(_partial(target))
        if lock is not None:
            if lock.held:
                undo_exchange(lock.path, target)
                shutil.rmtree(lock.path, ignore_errors=True)
            lock.release()


def _partial(target: Path) -> Path:
    return target.parent / f".{target.name}.partial"


def _acquire(path: Path, waiting: Callable[[], None]) -> DirectoryLock:
    while True:
        path.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another build finished and renamed the directory
            lock = lock_directory(path, waiting)
            assert lock is not None
            if lock.current:
                return lock
            lock.release()


def put_in_place(built: Path, target: Path) -> None:
    """Make the finished build the target; an older corpus there is removed."""
    if target.exists():
        exchange(built, target)
        shutil.rmtree(built, ignore_errors=True)
    else:
        built.rename(target)
