"""Public names of a package that load on first use, so that importing the package needs no torch.

tiebeam/__init__.py does the same in its own few lines: importing tiebeam imports no other module, this one included.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tiebeam.errors import MissingExtra


def loader(package: str, modules: Mapping[str, str], *, torch_for: str = "") -> Callable[[str], Any]:
    """A `__getattr__` for `package`. `modules` maps each public name to the module that defines it.

    `torch_for` is the subject of the error that is raised if torch is missing; "{name}" in it is replaced by the name.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as missing:
            if not torch_for or missing.name != "torch":
                raise
            raise MissingExtra(torch_for.format(name=name), "train") from missing
        setattr(sys.modules[package], name, value)
        return value

    return load
