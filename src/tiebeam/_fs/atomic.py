"""Write one file atomically: into a hidden temporary file beside it, flushed, then renamed.

The temporary name is fixed, `.NAME.part`: the next write replaces what a killed process left. Whoever writes holds the
lock of the directory, or is the only one who knows it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiebeam._fs.os_errors import explaining
from tiebeam._fs.short_names import shortened


@contextmanager
def atomic_path(path: Path, durable: bool = True) -> Iterator[Path]:
    """A temporary path to write to; it replaces `path` if the block succeeds and is removed if it fails.

    For writers that need a file name. Errors of the operating system are not translated; see `explaining`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with atomic_path(path) as temporary:
    ...     _ = temporary.write_text("new")
    >>> path.read_text()
    'new'
    """
    temporary = path.with_name(f".{shortened(path.name, 240)}.part")
    try:
        yield temporary
        if durable:
            flush_path(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, raw: bytes, durable: bool = True) -> None:
    """Write a file atomically: after a crash `path` holds the old bytes or the new ones, never a part.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> write_bytes(path, b"new")
    >>> path.read_bytes()
    b'new'
    """
    with explaining(path), atomic_path(path, durable) as temporary:
        temporary.write_bytes(raw)


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(path, text.encode(), durable)


def write_json(path: Path, document: Any, durable: bool = True) -> None:
    """Write a JSON document atomically, with keys in the given order."""
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n", durable)


def flush_path(path: Path) -> None:
    """fsync one file or directory. Windows cannot flush directories and needs write access to flush files."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
