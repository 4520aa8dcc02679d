"""The files of a model, read by byte range.

A model is untrusted. A name found inside it (a shard in an index) must stay inside its directory, and a symbolic link
may leave the directory only as in the Hub's cache (snapshots/REV/file -> blobs/DIGEST). A read opens, reads and closes:
no descriptor stays open, so thousands of shards are no problem. Opening never blocks (a FIFO would) and files are not
memory-mapped (a mapped file that is truncated kills the process).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from tiebeam._pattern import pattern
from tiebeam.errors import UnreadableInput

if TYPE_CHECKING:
    from pathlib import Path

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_OPEN = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_MAX_READ = 1 << 30  # no system reads more than 2 GiB at once


class Files(Protocol):
    """Named files of one directory, local or remote, read by byte range."""

    def names(self) -> list[str]:
        """The files of the directory itself, sorted."""

    def folders(self) -> list[str]:
        """Its subdirectories, sorted."""

    def size(self, name: str) -> int: ...

    def head(self, name: str, count: int) -> tuple[int, bytes]:
        """A file's size and its first bytes in one request: about `count`, at least 16 if the file has them."""

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Bytes begin:end. A short read is an error."""


_WINDOWS = os.name == "nt"
# Windows opens a device for these names, in every directory and with any suffix.
_DEVICES = pattern(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])( *\..*| *)", re.IGNORECASE)


def contained(name: str, where: str) -> str:
    """`name`, if it is a relative path that cannot leave its directory; otherwise an error."""
    if not name or name[0] in "/\\" or "\0" in name or name[1:2] == ":" or (".." in name and _climbs(name)):
        raise UnreadableInput(
            f"{where} names the file {name!r}, which is outside the model's directory; refusing to read"
        )
    if _WINDOWS and (":" in name or any(map(_DEVICES.fullmatch, re.split(r"[/\\]", name)))):
        raise UnreadableInput(f"{where} names the file {name!r}, which Windows takes for a device; refusing to read")
    return name


def _climbs(name: str) -> bool:
    return ".." in re.split(r"[/\\]", name)


class LocalFiles:
    """The files of one directory on disk."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.where = os.fspath(root)
        self._prefix = f"{self.where}{os.sep}"
        self._sizes: dict[str, int] = {}
        self._listed: frozenset[str] = frozenset()  # names of the directory itself, which cannot leave it

    @cached_property
    def root(self) -> Path:
        """The directory. Made when it is asked for: importing pathlib takes longer than reading a header."""
        from pathlib import Path

        return Path(self.where)

    def names(self) -> list[str]:
        names = self._list(directories=False)
        self._listed = frozenset(names)
        return names

    def folders(self) -> list[str]:
        return self._list(directories=True)

    def _list(self, directories: bool) -> list[str]:
        try:
            with os.scandir(self.where) as entries:
                found = list(entries)
            try:
                return sorted([entry.name for entry in found if entry.is_dir() is directories])
            except OSError:  # a link to itself
                return sorted([entry.name for entry in found if _is_directory(entry) is directories])
        except OSError as error:
            raise UnreadableInput(_explain(self.root, error)) from None

    def path(self, name: str) -> Path:
        """The resolved path of `name`, checked to be inside the model's directory."""
        path = self.root / contained(name, self._prefix)
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise UnreadableInput(_explain(path, error)) from None
        if not self.holds(real):
            raise UnreadableInput(
                f"{path} is a link to {real}, outside the model's directory; name the real directory, or copy the file"
            )
        return real

    def holds(self, real: Path) -> bool:
        """Whether a resolved path belongs to this model: in its directory, or in the blobs of its Hub cache."""
        from pathlib import Path

        root = Path(os.path.realpath(self.root))
        if real.is_relative_to(root):
            return True
        repository = _cache_repository(root)
        if repository is None:
            return False
        # Newer caches have one blob store for all repositories: <cache>/blobs/ab/<64 hex digits>.
        common_blob = re.escape(str(repository.parent / "blobs")) + r"[/\\][0-9a-f]{2}[/\\][0-9a-f]{64}"
        return real.is_relative_to(repository / "blobs") or re.fullmatch(common_blob, str(real)) is not None

    def _open(self, name: str) -> int:
        listed = name in self._listed
        if not listed:
            contained(name, self._prefix)
        if _NOFOLLOW and (listed or "/" not in name):  # fast path for plain files: the system call refuses links
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

    @contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """A descriptor of a regular file of this directory. Anything else, and a link that leaves it, is an error."""
        handle = self._open(name)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise UnreadableInput(f"{self.root / name} is not a regular file")
            yield handle
        except OSError as error:
            raise UnreadableInput(_explain(self.root / name, error)) from None
        finally:
            os.close(handle)

    def size(self, name: str) -> int:
        if name not in self._sizes:
            self.head(name, 0)
        return self._sizes[name]

    def head(self, name: str, count: int) -> tuple[int, bytes]:
        handle = self._open(name)  # as `opened`, without the cost of a context manager: it is called for every shard
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
        size = self.size(name)
        if end > size:
            raise UnreadableInput(f"{self.root / name} ends at byte {size:,}; {end:,} were expected")
        blocks: list[bytes] = []
        with self.opened(name) as handle:
            os.lseek(handle, begin, os.SEEK_SET)
            while begin < end:
                blocks.append(os.read(handle, min(end - begin, _MAX_READ)))
                if not blocks[-1]:
                    raise UnreadableInput(f"{self.root / name} ends at byte {begin:,}; {end:,} were expected")
                begin += len(blocks[-1])
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself counts as a file, which fails when it is read
        return False


def _cache_repository(directory: Path) -> Path | None:
    """The repository folder of the Hub's cache, if `directory` is inside one of its snapshots."""
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
        return f"{path} is a symbolic link to itself"
    return f"{path} cannot be read: {error.strerror or error}"
