"""Write a result into a staging directory beside the target, then rename it into place.

The staging directory is a hidden sibling of the target (the same file system), is flushed to the disk and renamed: a
process killed at any moment leaves either the complete target or none. It is locked while its process lives, so that
a later run can tell an abandoned directory from one in use, and removes it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tiebeam._fs.atomic import explaining, flush_path
from tiebeam._fs.lock import DirectoryLock, lock_directory
from tiebeam.errors import BadRequest, Unwritable

_MODEL_FILE = re.compile(r"\.(safetensors|gguf|bin|pt|pth|npz)$|^config\.json$")


def check_target(source: Path, target: Path, force: bool) -> None:
    """Refuse a target that is the source, contains it, is inside it, or exists (unless `force`)."""
    real_source, real_target = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if real_target == real_source or (target.exists() and source.exists() and source.samefile(target)):
        raise BadRequest(f"{target} is the source itself, which is never overwritten; name another target")
    if real_target.is_relative_to(real_source):
        raise BadRequest(f"{target} is inside the source {source}; name a target outside it")
    if real_source.is_relative_to(real_target):
        raise BadRequest(f"the source {source} is inside {target}; name a target that does not contain it")
    if not _exists(target) or _is_empty_directory(target):
        return
    if not force:
        raise BadRequest(f"{target} exists; choose another name, or pass force=True to replace it")
    if target.is_symlink():
        raise BadRequest(f"{target} is a symbolic link, which force=True does not replace; remove it first")
    if target.is_dir() and not any(_MODEL_FILE.search(path.name) for path in target.iterdir()):
        raise BadRequest(f"{target} exists and is not a model; force=True replaces models only: remove it yourself")


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
    parents = _make_parents(target)
    stage = None
    try:
        with explaining(target):
            _clear_abandoned(target)
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
            elif _exists(self.target) and not _is_empty_directory(self.target):
                if not self.force:
                    raise self._appeared()
                exchange(self.path, self.target)
            else:
                self.path.rename(self.target)
            self.committed = True
            if self.durable:
                flush_path(self.target.parent)

    def _put_file(self, staged: Path) -> None:
        if self.force:
            if self.target.is_dir():
                raise BadRequest(f"{self.target} is a directory; a file cannot replace it")
            staged.replace(self.target)
            return
        try:
            os.link(staged, self.target)  # unlike rename, link does not replace a file that appeared meanwhile
        except FileExistsError:
            raise self._appeared() from None
        except OSError:  # a file system without hard links
            staged.rename(self.target)

    def _appeared(self) -> BadRequest:
        return BadRequest(f"{self.target} appeared while the result was written; pass force=True to replace it")

    def close(self) -> None:
        """Remove what was not committed, and release the lock."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.release()
            self._lock = None


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


def exchange(left: Path, right: Path) -> None:
    """Swap two paths atomically; where the system cannot, with three renames."""
    if not _exchange_atomically(left, right):
        aside = left.with_name(left.name + "-old")
        right.rename(aside)
        try:
            left.rename(right)
        except OSError:
            aside.rename(right)
            raise
        aside.rename(left)


def _exchange_atomically(left: Path, right: Path) -> bool:
    if sys.platform not in ("linux", "darwin"):
        return False
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    here, names = -100, (os.fsencode(left), os.fsencode(right))  # AT_FDCWD
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        done = libc.renameat2(here, names[0], here, names[1], 2)  # RENAME_EXCHANGE
    elif sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        done = libc.renamex_np(names[0], names[1], 2)  # RENAME_SWAP
    else:
        return False
    return bool(done == 0)


def _flush_tree(root: Path) -> None:
    """fsync every file and directory under `root`, bottom up."""
    for directory, _, names in os.walk(root, topdown=False):
        for name in names:
            flush_path(Path(directory, name))
        flush_path(Path(directory))


@contextmanager
def flushing(paths: Iterable[Path]) -> Iterator[None]:
    """Flush `paths` to the disk while the block writes them, so that little is left to flush at the end."""
    done, files = threading.Event(), list(paths)

    def flush() -> None:
        while not done.wait(0.02):
            for path in files:
                with suppress(OSError):  # not created yet; the flush at the end reports lasting errors
                    flush_path(path)

    flusher = threading.Thread(target=flush, daemon=True)
    flusher.start()
    try:
        yield
    finally:
        done.set()
        flusher.join()


def _prefix(target: Path) -> str:
    return f".{target.name[:100]}.tiebeam-"


def _clear_abandoned(target: Path) -> None:
    """Remove staging directories that killed runs left for this target: those that no process holds a lock on."""
    for entry in list(os.scandir(target.parent)):
        if not entry.name.startswith(_prefix(target)) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            lock = lock_directory(Path(entry.path))
        except OSError:
            continue
        if lock is not None:
            if lock.held:
                shutil.rmtree(entry.path, ignore_errors=True)
            lock.release()


def _make_parents(target: Path) -> list[Path]:
    """Create the missing parents; returns those created, innermost first."""
    missing = [parent for parent in target.absolute().parents if not parent.exists()]
    with explaining(target):
        for parent in reversed(missing):
            parent.mkdir(exist_ok=True)
    return missing


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _is_empty_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(os.scandir(path))
