"""Public names of a room that load on first use: importing it needs no torch.

The package itself does the same in its own few lines, because importing it imports no room, this one included.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tiebeam.errors import MissingExtra


def loader(package: str, homes: Mapping[str, str], *, torch_for: str = "") -> Callable[[str], Any]:
    """A `__getattr__` for `package`: each name from the module that is its home.

    `torch_for` says what needs the extra [train], "{name}" in it standing for the name, where torch is missing.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as missing:
            if not torch_for or missing.name != "torch":
                raise
            raise MissingExtra(torch_for.format(name=name), "train") from missing
        setattr(sys.modules[package], name, value)
        return value

    return load
