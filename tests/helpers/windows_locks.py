"""The part of msvcrt that locks use, over flock: Windows' locks are tested where there is no Windows."""

from __future__ import annotations

import errno
import fcntl
from types import SimpleNamespace


def locking(handle: int, mode: int, count: int) -> None:
    """As msvcrt.locking: an OSError if another descriptor holds the byte."""
    assert (mode, count) == (MSVCRT.LK_NBLCK, 1)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EACCES, "permission denied") from None


MSVCRT = SimpleNamespace(locking=locking, LK_NBLCK=2)
