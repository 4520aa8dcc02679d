"""Detect the caller: torch.compile, a torch.func transform, or eager code."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")


def in_functorch() -> bool:
    """Whether a torch.func transform (grad, vmap, jvp...) is running."""
    peek = getattr(torch._C._functorch, "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def eager_only(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function eagerly under torch.compile: a graph break before and after it.

    `torch.compiler.disable` as a decorator does the same, but imports the whole compiler with this package.
    """

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return cast(R, torch.compiler.disable(function)(*args, **kwargs))  # type: ignore[no-untyped-call]
        return function(*args, **kwargs)

    return wrapper
