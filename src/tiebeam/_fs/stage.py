"""Write a result into a staging directory beside the target, then rename it into place.

The staging directory is a hidden sibling of the target (the same file system), is flushed to the disk and renamed: a
process killed at any moment leaves either the complete target or none. It is locked while its process lives, so that
a later run can tell an abandoned directory from one in use, and removes it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from tiebeam._fs.atomic import flush_path
from tiebeam._fs.lock import DirectoryLock, lock_directory, remove_lock_file
from tiebeam._fs.os_errors import explaining
from tiebeam._fs.short_names import shortened
from tiebeam._fs.targets import is_empty_directory
from tiebeam.errors import BadRequest

_OLD = "-old"
_FLUSHES = 8  # at a time
_WINDOWS = os.name == "nt"


@contextmanager
def staging(target: Path, force: bool = False, durable: bool = True) -> Iterator[Stage]:
    """A `Stage` to write into; if the block ends without `commit()`, everything is removed, new parents too.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "model"
    >>> with staging(target) as stage:
    ...     _ = (stage.path / "config.json").write_text("{}")
    ...     stage.commit()
    >>> [path.name for path in target.iterdir()]
    ['config.json']
    """
    parents = make_parents(target)
    stage = None
    try:
        with explaining(target):
            clear_abandoned(target)
            stage = Stage(target, force, durable)
        yield stage
    finally:
        if stage is not None:
            stage.close()
        if stage is None or not stage.committed:
            for parent in parents:
                with suppress(OSError):
                    parent.rmdir()


class Stage:
    """The staging directory of a target: write into `path`, then call `commit`."""

    def __init__(self, target: Path, force: bool, durable: bool) -> None:
        self.target, self.force, self.durable = target, force, durable
        self.committed = False
        self._lock: DirectoryLock | None = None
        while self._lock is None:
            self.path = target.parent / f"{_prefix(target)}{secrets.token_hex(4)}"
            self.path.mkdir()
            with suppress(FileNotFoundError):  # between mkdir and lock another run may take it for abandoned
                lock = lock_directory(self.path)
                if lock is not None and lock.current:
                    self._lock = lock
                elif lock is not None:
                    lock.release()

    def commit(self, file: str | None = None) -> None:
        """Make the staged directory (or, with `file`, that one file of it) the target."""
        with explaining(self.target):
            if self.durable:
                _flush_tree(self.path)
            if file is not None:
                self._put_file(self.path / file)
            elif os.path.lexists(self.target) and not is_empty_directory(self.target):
                self._replace_directory()
            else:
                if _WINDOWS and self.target.is_dir():  # Windows renames to no existing name
                    self.target.rmdir()
                self.path.rename(self.target)
            self.committed = True
            if self.durable:
                flush_path(self.target.parent)

    def _replace_directory(self) -> None:
        if not self.force:
            raise self._appeared()
        if not self.target.is_dir():
            raise BadRequest(f"{self.target} is a file; a directory does not replace it: remove it yourself")
        theirs = lock_directory(self.target)
        if theirs is None:
            raise in_use(self.target)
        try:
            exchange(self.path, self.target)
        finally:
            theirs.release()

    def _put_file(self, staged: Path) -> None:
        if self.force:
            if self.target.is_dir():
                raise BadRequest(f"{self.target} is a directory; a file cannot replace it")
            staged.replace(self.target)
            return
        try:
            _link(staged, self.target)  # unlike rename, link does not replace a file that appeared meanwhile
        except FileExistsError:
            raise self._appeared() from None
        except OSError:  # a file system without hard links
            if not _renameat(staged, self.target, linux=1, darwin=4):  # RENAME_NOREPLACE, RENAME_EXCL
                if os.path.lexists(self.target):
                    raise self._appeared() from None
                staged.rename(self.target)

    def _appeared(self) -> BadRequest:
        return BadRequest(f"{self.target} appeared while the result was written; pass force=True to replace it")

    def detach_lock(self) -> DirectoryLock:
        """After `commit`: the lock of the directory, which is now the target; the caller releases it."""
        assert self.committed
        assert self._lock is not None
        lock, self._lock = self._lock, None
        lock.follow(self.target)
        shutil.rmtree(self.path, ignore_errors=True)
        return lock

    def close(self) -> None:
        """Remove what was not committed, and release the lock."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.release()
            self._lock = None


def _link(source: Path, target: Path) -> None:
    if not hasattr(os, "link"):
        raise OSError("this system has no hard links")
    os.link(source, target)


def in_use(path: Path) -> BadRequest:
    return BadRequest(f"{path} is in use by another process; wait until it has ended, or use another directory")


def exchange(left: Path, right: Path) -> None:
    """Swap two paths atomically; where the system cannot, with three renames (see `undo_exchange`)."""
    if not _exchange_atomically(left, right):
        aside = left.with_name(left.name + _OLD)
        right.rename(aside)
        try:
            left.rename(right)
        except OSError:
            aside.rename(right)
            raise
        aside.rename(left)


def undo_exchange(left: Path, right: Path) -> None:
    """After a kill between the renames of `exchange`: put the right side back, or remove it if it was replaced."""
    aside = left.with_name(left.name + _OLD)
    if aside.is_dir() and not aside.is_symlink():
        if os.path.lexists(right):
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(right)


def _exchange_atomically(left: Path, right: Path) -> bool:
    return _renameat(left, right, linux=2, darwin=2)  # RENAME_EXCHANGE, RENAME_SWAP


def _renameat(left: Path, right: Path, linux: int, darwin: int) -> bool:
    """Rename with a flag of the system; False if it failed or the system has none."""
    if sys.platform not in ("linux", "darwin"):
        return False
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    here, names = -100, (os.fsencode(left), os.fsencode(right))  # AT_FDCWD
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        done = libc.renameat2(here, names[0], here, names[1], linux)
    elif sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        done = libc.renamex_np(names[0], names[1], darwin)
    else:
        return False
    return bool(done == 0)


def _flush_tree(root: Path) -> None:
    """fsync every file under `root` in threads, because waiting flushes share one commit of the file system's journal;
    then every directory, bottom up."""
    found = [(Path(directory), names) for directory, _, names in os.walk(root, topdown=False)]
    with ThreadPoolExecutor(_FLUSHES) as threads:
        for flushed in [threads.submit(flush_path, directory / name) for directory, names in found for name in names]:
            flushed.result()
    for directory, _ in found:
        flush_path(directory)


def _prefix(target: Path) -> str:
    return f".{shortened(target.name)}.tiebeam-"


def clear_abandoned(target: Path) -> None:
    """Remove staging directories that killed runs left for this target: those that no process holds a lock on."""
    names = [entry.name for entry in os.scandir(target.parent) if entry.is_dir(follow_symlinks=False)]
    for name in sorted(name for name in names if name.startswith(_prefix(target))):
        path = target.parent / name
        try:
            lock = lock_directory(path)
        except OSError:
            continue
        if lock is not None:
            if lock.held and name.endswith(_OLD):
                undo_exchange(path.with_name(name.removesuffix(_OLD)), target)
            elif lock.held:
                shutil.rmtree(path, ignore_errors=True)
            lock.release()
    _clear_lock_files(target)


def _clear_lock_files(target: Path) -> None:
    """Remove the lock files (of Windows) whose staging directory is gone: a kill came between rename and release."""
    names = [entry.name for entry in os.scandir(target.parent) if entry.name.endswith(".lock")]
    for name in names:
        staged = name.removeprefix(".").removesuffix(".lock")
        if staged.startswith(_prefix(target)) and not (target.parent / staged).exists():
            remove_lock_file(target.parent / name)


def make_parents(target: Path) -> list[Path]:
    """Create the missing parents; returns those created, innermost first."""
    with explaining(target):
        missing = [parent for parent in target.absolute().parents if not parent.exists()]
        for parent in reversed(missing):
            parent.mkdir(exist_ok=True)
    return missing
