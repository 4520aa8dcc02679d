"""Errors that a user's input can cause. Anything else that is raised is a bug.

Every message is one sentence: what is wrong, the value, what to do. The CLI maps each class to an exit code.

The entry of a reader of untrusted files is decorated with `reader` (or wraps what it does in `reader_border`), so that
even a bug ends in a sentence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class TiebeamError(Exception):
    """Base class of all errors that a user's input can cause."""


class UnreadableInput(TiebeamError):
    """The input is missing, damaged, unsafe, or in a format that cannot be read."""


class BadRequest(TiebeamError):
    """The request is wrong: an argument, or an operation that does not apply to this input."""


class MissingExtra(UnreadableInput):
    """The input needs an optional package that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra [{extra}]; install it with: pip install 'tiebeam[{extra}]'")


class NumbersNotRead(UnreadableInput):
    """Names and shapes of the tensors are known, but their numbers cannot be read."""


class Unwritable(TiebeamError):
    """The target cannot be written: the disk is full, no permission, no such directory."""


class ProofFailed(TiebeamError):
    """A result failed its verification. The target was not written."""


class TieBroken(TiebeamError):
    """A model in memory lost its tie, or is about to lose it. Raised by the guard."""


@contextmanager
def reader_border(what: object) -> Iterator[None]:
    """Turn an exception that nobody foresaw into an UnreadableInput that asks for a report.

    With TIEBEAM_TRACEBACK=1 in the environment it is raised as it is: the tests and the fuzzer run so.

        >>> with reader_border("model.gguf"):  # doctest: +SKIP
        ...     {}["layers"]
        Traceback (most recent call last):
        UnreadableInput: model.gguf cannot be read: KeyError('layers'); this is a bug of tiebeam, please report it ...
    """
    try:
        yield
    except TiebeamError:
        raise
    except Exception as error:
        if os.environ.get("TIEBEAM_TRACEBACK"):
            raise
        if isinstance(error, MemoryError):
            raise UnreadableInput(f"{what} needs more memory than this process may use") from error
        raise UnreadableInput(
            f"{what} cannot be read: {repr(error)[:200]}; this is a bug of tiebeam, please report it "
            "(TIEBEAM_TRACEBACK=1 shows where it happened)"
        ) from error


def reader(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """`function` inside a `reader_border` that names its first argument: a path, or what was opened from one."""

    @wraps(function)
    def bordered(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        first = args[0] if args else "the input"
        with reader_border(getattr(first, "source", first if isinstance(first, str | os.PathLike) else "the input")):
            return function(*args, **kwargs)

    return bordered
