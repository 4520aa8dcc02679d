"""Compare byte ranges of two files block by block, and detect files that change while they are read."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path

from tiebeam.errors import UnreadableInput

BLOCK = 1 << 20


def first_difference(
    left: Path,
    left_begin: int,
    right: Path,
    right_begin: int,
    count: int,
    block: int = BLOCK,
    compared: Callable[[], None] = lambda: None,
) -> int | None:
    """Offset of the first block in which `count` bytes of two files differ; None if they are equal.

    `compared` is called after every block that is equal.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "letters"
    >>> _ = path.write_bytes(b"abcabd")
    >>> first_difference(path, 0, path, 3, 2), first_difference(path, 0, path, 3, 3, block=1)
    (None, 2)
    """
    size = min(block, count)
    ours, theirs = bytearray(size), bytearray(size)
    with open(left, "rb", buffering=0) as left_file, open(right, "rb", buffering=0) as right_file:
        for at in range(0, count, block):
            if count - at < size:
                size = count - at
                ours, theirs = bytearray(size), bytearray(size)
            read_into(left_file, ours, left_begin + at)
            read_into(right_file, theirs, right_begin + at)
            if ours != theirs:
                return at
            compared()
    return None


def read_into(file: FileIO, buffer: bytearray, at: int) -> None:
    """Fill `buffer` from byte `at` of an unbuffered file."""
    file.seek(at)
    view = memoryview(buffer)
    while view:
        count = file.readinto(view)
        if not count:
            raise UnreadableInput(f"{file.name!s} became shorter while it was read; run it again")
        view = view[count:]


class Fingerprints:
    """Identity, size and time of the source's files, to detect a change while they are read."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._seen = {path: _fingerprint(path) for path in paths}

    def changed(self) -> Path | None:
        """The first file that is not as it was, if any."""
        return next((path for path, seen in self._seen.items() if _fingerprint(path) != seen), None)


def _fingerprint(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    assert stat.S_ISREG(status.st_mode)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
