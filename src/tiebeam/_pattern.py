"""Regular expressions that are compiled when they are first used.

Compiling one takes 20 to 400 µs whenever a process starts, and most of those that `tiebeam inspect` imports are for
files that the model at hand does not have.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from re import compile as pattern
else:

    class pattern:  # noqa: N801 - it stands for a function
        """`re.compile` at the first use of one of its methods."""

        def __init__(self, text: str, flags: int = 0) -> None:
            self._text, self._flags = text, flags

        def __getattr__(self, name: str) -> Any:
            compiled = re.compile(self._text, self._flags)
            for method in ("search", "match", "fullmatch", "finditer", "sub", "split"):
                setattr(self, method, getattr(compiled, method))  # the next call does not come here
            return getattr(compiled, name)


__all__ = ["pattern"]
