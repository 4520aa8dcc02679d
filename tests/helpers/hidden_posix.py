"""A pytest plugin that hides from tiebeam what Windows, or macOS, lacks: python -m pytest -p helpers.hidden_posix

Modules of tiebeam get an `os` without positional reads and writes, hard links and fork, a libc without the
renames that exchange or refuse, and no fcntl or resource. Locks go through an msvcrt that locks as Windows does, over
flock. Other libraries see the real system, which they need. What this cannot show: how Windows treats open files,
drives and upper and lower case.
"""

from __future__ import annotations

import builtins
import ctypes
import os
import sys
from types import ModuleType
from typing import Any

from helpers.windows_locks import MSVCRT

FUNCTIONS = (
    "pread", "preadv", "pwrite", "pwritev", "posix_fadvise", "posix_fallocate", "sendfile", "copy_file_range", "link",
    "fork", "forkpty", "sched_getaffinity", "sched_setaffinity", "getloadavg", "statvfs", "fstatvfs", "sync",
    "O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "O_DIRECT",
)  # fmt: skip
MODULES = ("fcntl", "resource", "pwd", "grp", "termios")
asked: set[str] = set()
"""What tiebeam asked for and did not get: a test checks that the plugin had something to hide."""


class _Reduced(ModuleType):
    """A module without some of its names."""

    def __init__(self, module: ModuleType, hidden: tuple[str, ...], **changed: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(_module=module, _hidden=hidden, **changed)

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            asked.add(f"{self.__name__}.{name}")
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._module, name)


class _Library:
    """libc without the renames that have flags."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._library = ctypes.CDLL(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name in ("renameat2", "renamex_np"):
            asked.add(name)
            raise AttributeError(name)
        return getattr(self._library, name)


_REDUCED = {"os": _Reduced(os, FUNCTIONS), "ctypes": _Reduced(ctypes, (), CDLL=_Library)}


def hide() -> None:
    assert not any(name == "tiebeam" or name.startswith("tiebeam.") for name in sys.modules)
    real = builtins.__import__

    def reduced_import(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        if str((globals or {}).get("__name__", "")).startswith("tiebeam") and not level:
            if name in MODULES:
                asked.add(name)
                raise ModuleNotFoundError(f"No module named {name!r}")
            if name in _REDUCED:
                return _REDUCED[name]
        return real(name, globals, locals, fromlist, level)

    builtins.__import__ = reduced_import
    from tiebeam._fs import lock

    lock._HAS_FLOCK, lock._HAS_MSVCRT = False, True
    lock.import_module = lambda name: MSVCRT  # type: ignore[assignment, misc]


hide()
