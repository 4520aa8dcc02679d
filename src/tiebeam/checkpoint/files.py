"""The bytes under a checkpoint: a set of named files, read by range.

A model is untrusted. A name found inside it (a shard in an index) must stay inside its directory, and a
link may leave the directory only the way the Hub's own cache does (snapshots/REV/file -> blobs/DIGEST).
Reads open, read and close: no descriptor is held, so thousands of shards are no problem.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath
from typing import Protocol

from tiebeam.errors import UnreadableInput


class Files(Protocol):
    """Named files read by byte range, local or remote."""

    def names(self) -> list[str]: ...

    def size(self, name: str) -> int: ...

    def read(self, name: str, begin: int, end: int) -> bytes: ...


class LocalFiles:
    """The files of one directory (`only` restricts it to one of them)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._home = _cache_repository(root) or Path(os.path.realpath(root))

    def names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.root) if not entry.is_dir())
        except OSError as error:
            raise UnreadableInput(_explain(self.root, error)) from None

    def path(self, name: str) -> Path:
        """Where `name` lies, proved to be inside the model's directory."""
        parts = PurePosixPath(name).parts
        if not parts or name.startswith(("/", "\\")) or ".." in parts or "\0" in name or ":" in parts[0]:
            raise UnreadableInput(f"{self.root} names the file {name!r}, which is outside its own directory; refused")
        path = self.root / name
        if path.is_symlink():
            try:
                real = path.resolve(strict=True)
            except (OSError, RuntimeError) as error:
                raise UnreadableInput(_explain(path, error)) from None
            if not real.is_relative_to(self._home):
                raise UnreadableInput(
                    f"{path} is a link to {real}, outside the model's directory; name the real directory, or copy it in"
                )
        return path

    def size(self, name: str) -> int:
        path = self.path(name)
        try:
            status = path.stat()
        except OSError as error:
            raise UnreadableInput(_explain(path, error)) from None
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableInput(f"{path} is not a regular file")
        return status.st_size

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Bytes begin:end; fewer bytes than asked for is an error, never a short answer."""
        path = self.path(name)
        try:
            with open(path, "rb", buffering=0) as handle:
                raw = os.pread(handle.fileno(), end - begin, begin) if end > begin else b""
                while len(raw) < end - begin:  # pread stops at 2 GiB
                    more = os.pread(handle.fileno(), end - begin - len(raw), begin + len(raw))
                    if not more:
                        raise UnreadableInput(f"{path} ends at byte {begin + len(raw):,}; {end:,} were expected")
                    raw += more
        except OSError as error:
            raise UnreadableInput(_explain(path, error)) from None
        return raw


def _cache_repository(root: Path) -> Path | None:
    """The repository folder of the Hub's cache that `root` is a snapshot of, if it is one."""
    real = Path(os.path.realpath(root))
    if real.parent.name == "snapshots" and (real.parent.parent / "blobs").is_dir():
        return real.parent.parent
    return None


def _explain(path: Path, error: OSError | RuntimeError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist"
    if isinstance(error, PermissionError):
        return f"{path} may not be read: permission denied"
    if isinstance(error, NotADirectoryError):
        return f"{path} is not a directory"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{path} cannot be read: {reason}"
