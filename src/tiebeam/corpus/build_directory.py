"""Building beside the target and renaming into place, so that nothing half-made is ever seen.

The hidden directory .NAME.partial next to the target is the workshop. It survives an interruption, so that the next
build can go on from it, and is locked by the process that works in it; the lock dies with the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tiebeam.errors import BadRequest

_OURS = re.compile(r"corpus\.json|tokenizer\.(json|model)|(train|val)_\d{6,}\.bin")


def refuse_foreign(target: Path) -> None:
    """Only what a build wrote may be replaced by a build."""
    if target.is_dir():
        strange = next(
            (name for name in sorted(path.name for path in target.iterdir()) if not _OURS.fullmatch(name)), None
        )
        if strange is not None:
            raise BadRequest(f"{target} holds {strange}, which is not part of a corpus; choose another place")
    elif target.exists():
        raise BadRequest(f"{target} is not a directory; choose another place")


@contextlib.contextmanager
def workshop_of(target: Path, waiting: Callable[[], None]) -> Iterator[Path]:
    """The directory to build `target` in, for one process at a time."""
    place = target.parent / f".{target.name}.partial"
    handle = _acquire(place, waiting)
    try:
        yield place
    finally:
        with contextlib.suppress(OSError):
            place.rmdir()  # only if nothing is in it
        if handle is not None:
            os.close(handle)


def _acquire(place: Path, waiting: Callable[[], None]) -> int | None:
    while True:
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadRequest(f"{place} cannot be made: {error.strerror}; choose another place") from None
        if sys.platform == "win32":
            return None
        import fcntl

        handle = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        if place.exists() and os.path.samestat(os.fstat(handle), place.stat()):
            return handle
        os.close(handle)  # the other build finished and moved the directory away


def put_in_place(workshop: Path, target: Path) -> None:
    old = target.parent / f".{target.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    workshop.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def write(path: Path, raw: bytes) -> None:
    """All of it or nothing."""
    beside = path.with_name(path.name + ".tmp")
    with open(beside, "wb") as handle:
        handle.write(raw)
        handle.flush()
        os.fsync(handle.fileno())
    beside.replace(path)


def write_json(path: Path, document: dict[str, Any]) -> None:
    write(path, json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n")
