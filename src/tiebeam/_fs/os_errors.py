"""Turn an error of the operating system into one sentence and the right kind of `TiebeamError`. Only here.

safetensors reports such errors as text, with the number at the end: "... (os error 28)".
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiebeam._fs.short_names import shortened
from tiebeam.errors import TiebeamError, UnreadableInput, Unwritable

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}
_IN_TEXT = re.compile(r"\(os error (\d+)\)")


@contextmanager
def explaining(target: Path) -> Iterator[None]:
    """Turn an OSError from writing `target` into `Unwritable`, or into `UnreadableInput` if it names another file.

    >>> with explaining(Path("/dev/null/model")):
    ...     Path("/dev/null/model").mkdir()
    Traceback (most recent call last):
    tiebeam.errors.Unwritable: /dev/null/model cannot be written: /dev/null is not a directory
    """
    try:
        yield
    except OSError as error:
        raise _while_writing(error, target) from None
    except Exception as error:
        found = type(error).__name__ == "SafetensorError" and _IN_TEXT.search(str(error))
        if not found:
            raise
        raise _while_writing(OSError(int(found[1]), os.strerror(int(found[1]))), target) from None


@contextmanager
def reading(source: Path) -> Iterator[None]:
    """Turn an OSError from reading `source` into `UnreadableInput`."""
    try:
        yield
    except OSError as error:
        raise UnreadableInput(f"{_named(error) or source} cannot be read: {_reason(error)}") from None


def unforeseen(error: OSError) -> TiebeamError:
    """The error for an OSError that no `explaining` or `reading` was around."""
    if error.errno in _FULL:
        return Unwritable("the disk is full; free some space and run it again")
    where = _named(error)
    return UnreadableInput(f"{where}: {_reason(error)}" if where else _reason(error))


def _while_writing(error: OSError, target: Path) -> TiebeamError:
    if error.errno in _FULL:
        return Unwritable(f"the disk that holds {target.parent} is full; free some space and run it again")
    named = _named(error)
    if named is not None and not _belongs_to(named, target):
        return UnreadableInput(f"{named} cannot be read: {_reason(error)}")
    if error.errno in _FORBIDDEN:
        return Unwritable(f"{target} may not be written: {_reason(error)}")
    if error.errno == errno.ENOTDIR:
        file = next((parent for parent in target.absolute().parents if parent.exists() and not parent.is_dir()), None)
        if file is not None:
            return Unwritable(f"{target} cannot be written: {file} is not a directory")
    return Unwritable(f"{target} cannot be written: {_reason(error)}")


def _named(error: OSError) -> Path | None:
    return Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None


def _belongs_to(path: Path, target: Path) -> bool:
    """Whether `path` is the target, inside it, a parent of it, or a temporary name beside it."""
    path, target = (Path(os.path.realpath(p.parent), p.name) for p in (path, target))
    if path.is_relative_to(target) or target.is_relative_to(path):
        return True
    inside = path.relative_to(target.parent).parts if path.is_relative_to(target.parent) else ("",)
    return inside[0].startswith(f".{shortened(target.name)}.")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower() if error.errno else str(error)
