"""A place beside the target that becomes the target in one rename, or vanishes.

Everything is written into a hidden sibling of DST (so on the same file system), flushed to the disk, and
renamed; whoever kills us at any moment finds either the complete DST or none. The sibling is locked while
its maker lives (`flock`, which the kernel drops with the process), so a later run can tell an abandoned one
from a busy one and clears it away.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tiebeam.errors import BadRequest, Unwritable

_MODEL_FILE = re.compile(r"\.(safetensors|gguf|bin|pt|pth|npz)$|^config\.json$")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}


def check_target(source: Path, target: Path, force: bool) -> None:
    """Refuse a target that is the source, holds it, lies in it, or exists (unless forced)."""
    real_source, real_target = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if real_target == real_source or (target.exists() and source.exists() and source.samefile(target)):
        raise BadRequest(f"{target} is the source itself, which is never written over; name another target")
    if real_target.is_relative_to(real_source):
        raise BadRequest(f"{target} lies inside the source {source}; name a target outside it")
    if real_source.is_relative_to(real_target):
        raise BadRequest(f"the source {source} lies inside {target}; name a target that does not hold it")
    if not _exists(target) or _is_empty_directory(target):
        return
    if not force:
        raise BadRequest(f"{target} exists; choose another name, or pass --force to replace it")
    if target.is_symlink():
        raise BadRequest(f"{target} is a link; --force replaces files and directories, not links: remove it first")
    if target.is_dir() and not any(_MODEL_FILE.search(path.name) for path in target.iterdir()):
        raise BadRequest(f"{target} exists and holds no model; --force replaces models only: remove it yourself")


@contextmanager
def staging(target: Path, force: bool = False, durable: bool = True) -> Iterator[Stage]:
    """A `Stage` to write into; leaving the block without `commit()` removes every trace of it."""
    made = _make_parents(target)
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
            for parent in made:
                with suppress(OSError):
                    parent.rmdir()


class Stage:
    """The temporary sibling of a target: `path` is the directory to write into."""

    def __init__(self, target: Path, force: bool, durable: bool) -> None:
        self.target, self.force, self.durable = target, force, durable
        self.committed = False
        self._lock = -1
        while self._lock < 0:
            self.path = target.parent / f"{_prefix(target)}{secrets.token_hex(4)}"
            self.path.mkdir()
            handle = os.open(self.path, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks; then nobody clears it away, either
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.path.exists():  # between mkdir and flock another run may have taken it for abandoned
                self._lock = handle
            else:
                os.close(handle)

    def commit(self, file: str | None = None) -> None:
        """Make the staged directory (or, with `file`, that one file of it) the target."""
        with explaining(self.target):
            if self.durable:
                flush(self.path)
            if file is not None:
                self._put_file(self.path / file)
            elif _exists(self.target) and not _is_empty_directory(self.target):
                if not self.force:
                    raise BadRequest(f"{self.target} appeared while it was being made; pass --force to replace it")
                exchange(self.path, self.target)
            else:
                self.path.rename(self.target)
            self.committed = True
            if self.durable:
                _flush_one(self.target.parent)

    def _put_file(self, made: Path) -> None:
        if self.force:
            if self.target.is_dir():
                raise BadRequest(f"{self.target} is a directory; a file does not replace it")
            made.replace(self.target)
            return
        try:
            os.link(made, self.target)  # unlike a rename, it refuses to replace what appeared meanwhile
        except FileExistsError:
            raise BadRequest(f"{self.target} appeared while it was being made; pass --force to replace it") from None
        except OSError:  # a file system without hard links
            made.rename(self.target)

    def close(self) -> None:
        if self._lock >= 0:
            if self.path.exists():
                shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def write_bytes(path: Path, raw: bytes, durable: bool = True) -> None:
    """Write a file atomically: after a crash `path` holds the old bytes or the new ones, never a part.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> write_bytes(path, b"new")
    >>> path.read_bytes()
    b'new'
    """
    with explaining(path):
        temporary = path.with_name(f".{path.name}.part")
        with open(temporary, "wb") as handle:
            handle.write(raw)
            handle.flush()
            if durable:
                os.fsync(handle.fileno())
        temporary.replace(path)


def write_json(path: Path, document: Any, durable: bool = True) -> None:
    """Write a JSON document atomically, with keys in the order given."""
    write_bytes(path, json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n", durable)


@contextmanager
def explaining(target: Path) -> Iterator[None]:
    """Turn what the operating system says about writing into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise Unwritable(f"the disk that holds {target.parent} is full; nothing was left there") from None
        if error.errno in _FORBIDDEN:
            raise Unwritable(f"{target} may not be written: {(error.strerror or '').lower()}") from None
        reason = error.strerror or str(error)
        raise Unwritable(f"{target} cannot be written: {reason}") from None


def check_space(target: Path, needed: int) -> None:
    """Fail before the first byte when the disk cannot hold the result."""
    try:
        free = shutil.disk_usage(target.parent).free
    except OSError:
        return
    if needed > free:
        raise Unwritable(
            f"{target} needs {needed:,} bytes and the disk has {free:,} free; make room, or name a target elsewhere"
        )


def exchange(left: Path, right: Path) -> None:
    """Swap two names so that at no moment is either missing; where the system cannot, rename in two steps."""
    if not _exchange_at_once(left, right):
        aside = left.with_name(left.name + "-old")
        right.rename(aside)
        try:
            left.rename(right)
        except OSError:
            aside.rename(right)
            raise
        aside.rename(left)


def _exchange_at_once(left: Path, right: Path) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    here, names = -100, (os.fsencode(left), os.fsencode(right))  # AT_FDCWD
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        done = libc.renameat2(here, names[0], here, names[1], 2)  # RENAME_EXCHANGE
    elif sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        done = libc.renamex_np(names[0], names[1], 2)  # RENAME_SWAP
    else:
        return False
    return bool(done == 0)


def flush(root: Path) -> None:
    """fsync every file and directory under `root`, bottom up."""
    for directory, _, names in os.walk(root, topdown=False):
        for name in names:
            _flush_one(Path(directory, name))
        _flush_one(Path(directory))


@contextmanager
def flushing(paths: Iterable[Path]) -> Iterator[None]:
    """Keep sending what is written into `paths` to the disk while the block runs, so that little is left to flush."""
    done, files = threading.Event(), list(paths)

    def send() -> None:
        while not done.wait(0.02):
            for path in files:
                with suppress(OSError):  # not made yet; what fails for good, the flush at the end will say
                    _flush_one(path)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        yield
    finally:
        done.set()
        sender.join()


def _flush_one(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _prefix(target: Path) -> str:
    return f".{target.name[:100]}.tiebeam-"


def _clear_abandoned(target: Path) -> None:
    """Remove the siblings that killed runs for this target left behind: those nobody holds a lock on."""
    for entry in list(os.scandir(target.parent)):
        if not entry.name.startswith(_prefix(target)) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            handle = os.open(entry.path, os.O_RDONLY)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry.path, ignore_errors=True)
        except OSError:
            pass  # another run is at work on it, or the file system has no locks
        finally:
            os.close(handle)


def _make_parents(target: Path) -> list[Path]:
    """Create the missing parents; returns those made, innermost first."""
    missing = [parent for parent in target.absolute().parents if not parent.exists()]
    with explaining(target):
        for parent in reversed(missing):
            parent.mkdir(exist_ok=True)
    return missing


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _is_empty_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(os.scandir(path))


class Fingerprints:
    """Remembers what the source's files looked like, to notice when one changes underneath."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._seen = {path: _fingerprint(path) for path in paths}

    def changed(self) -> Path | None:
        return next((path for path, seen in self._seen.items() if _fingerprint(path) != seen), None)


def _fingerprint(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    assert stat.S_ISREG(status.st_mode)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
