"""The bytes under a checkpoint: a set of named files, read by range.

A model is untrusted. A name found inside it (a shard in an index) must stay inside its directory, and a
link may leave the directory only the way the Hub's own cache does (snapshots/REV/file -> blobs/DIGEST).
Reads open, read and close: no descriptor is held, so thousands of shards are no problem. Opening never
waits (a FIFO would) and reading never maps (a file cut short under a map kills the process).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Protocol

from tiebeam.errors import UnreadableInput

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_OPEN = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_PIECE = 1 << 30  # no system reads more than 2 GiB at once


class Files(Protocol):
    """Named files of one directory, read by byte range, local or remote."""

    def names(self) -> list[str]:
        """The files of the directory itself, sorted."""

    def folders(self) -> list[str]:
        """The directories in it, sorted."""

    def size(self, name: str) -> int: ...

    def head(self, name: str, count: int) -> tuple[int, bytes]:
        """A file's size and its first bytes, in one trip: about `count` of them, at least 16 where there are."""

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Bytes begin:end; fewer bytes than asked for is an error, never a short answer."""


def contained(name: str, where: str) -> str:
    """`name`, when it is a relative path that cannot leave its directory; a sentence otherwise."""
    if not name or name[0] in "/\\" or "\0" in name or name[1:2] == ":" or (".." in name and _climbs(name)):
        raise UnreadableInput(f"{where} names the file {name!r}, which is outside its own directory; refused")
    return name


def _climbs(name: str) -> bool:
    return ".." in re.split(r"[/\\]", name)


class LocalFiles:
    """The files of one directory on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prefix = f"{root}{os.sep}"
        self._sizes: dict[str, int] = {}

    def names(self) -> list[str]:
        return self._list(directories=False)

    def folders(self) -> list[str]:
        return self._list(directories=True)

    def _list(self, directories: bool) -> list[str]:
        try:
            with os.scandir(self.root) as entries:
                return sorted(entry.name for entry in entries if _is_directory(entry) is directories)
        except OSError as error:
            raise UnreadableInput(_explain(self.root, error)) from None

    def path(self, name: str) -> Path:
        """Where `name` really lies, proved to be inside the model's directory."""
        path = self.root / contained(name, self._prefix)
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise UnreadableInput(_explain(path, error)) from None
        if not self.holds(real):
            raise UnreadableInput(
                f"{path} is a link to {real}, outside the model's directory; name the real directory, or copy it in"
            )
        return real

    def holds(self, real: Path) -> bool:
        """Whether a resolved path belongs to this model: its directory, or the blobs of the cache it lies in."""
        home = Path(os.path.realpath(self.root))
        if real.is_relative_to(home):
            return True
        repository = _cache_repository(home)
        if repository is None:
            return False
        # Newer caches keep one store of blobs for all repositories: <cache>/blobs/ab/<64 hex digits>.
        shared = re.escape(str(repository.parent / "blobs")) + r"[/\\][0-9a-f]{2}[/\\][0-9a-f]{64}"
        return real.is_relative_to(repository / "blobs") or re.fullmatch(shared, str(real)) is not None

    def _open(self, name: str) -> int:
        contained(name, self._prefix)
        if _NOFOLLOW and "/" not in name:  # a plain file, proved by the system call itself; links go the long way
            try:
                return os.open(self._prefix + name, _OPEN | _NOFOLLOW)
            except OSError as error:
                if not (self.root / name).is_symlink():
                    raise UnreadableInput(_explain(self.root / name, error)) from None
        real = self.path(name)
        try:
            return os.open(real, _OPEN | _NOFOLLOW)
        except OSError as error:
            raise UnreadableInput(_explain(real, error)) from None

    def size(self, name: str) -> int:
        if name not in self._sizes:
            self.head(name, 0)
        return self._sizes[name]

    def head(self, name: str, count: int) -> tuple[int, bytes]:
        handle = self._open(name)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableInput(f"{self.root / name} is not a regular file")
            self._sizes[name] = status.st_size
            return status.st_size, os.read(handle, count) if count else b""
        except OSError as error:
            raise UnreadableInput(_explain(self.root / name, error)) from None
        finally:
            os.close(handle)

    def read(self, name: str, begin: int, end: int) -> bytes:
        size = self.size(name)  # also proves a regular file
        if end > size:
            raise UnreadableInput(f"{self.root / name} ends at byte {size:,}; {end:,} were expected")
        pieces: list[bytes] = []
        handle = self._open(name)
        try:
            os.lseek(handle, begin, os.SEEK_SET)
            while begin < end:
                pieces.append(os.read(handle, min(end - begin, _PIECE)))
                if not pieces[-1]:
                    raise UnreadableInput(f"{self.root / name} ends at byte {begin:,}; {end:,} were expected")
                begin += len(pieces[-1])
        except OSError as error:
            raise UnreadableInput(_explain(self.root / name, error)) from None
        finally:
            os.close(handle)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle: a file that cannot be read, if anyone asks for it
        return False


def _cache_repository(directory: Path) -> Path | None:
    """The repository folder of the Hub's cache that holds `directory` in one of its snapshots, if there is one."""
    for parent in directory.parents:
        if parent.name == "snapshots" and (parent.parent / "blobs").is_dir():
            return parent.parent
    return None


def _explain(path: Path, error: OSError | RuntimeError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist"
    if isinstance(error, PermissionError):
        return f"{path} may not be read: permission denied"
    if isinstance(error, NotADirectoryError):
        return f"{path} is not a directory"
    if isinstance(error, RuntimeError) or error.errno == errno.ELOOP:
        return f"{path} is a link that leads in a circle"
    return f"{path} cannot be read: {error.strerror or error}"
