"""Every rule of the doctor, one file each. A file here that defines RULE is a rule; nothing else lists it.

`RULES` has them all; `rules_of` imports only those of one kind, which the first digit of a file's number says.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Any

from tiebeam.doctor.rule import Rule, kind_of

RULES: dict[str, Rule]


@cache
def rules_of(kind: str) -> dict[str, Rule]:
    """The rules for a checkpoint, an adapter or a module, by code."""
    return _rules([name for name in _files() if kind_of(name) == kind])


@cache
def _files() -> list[str]:
    names = sorted(os.listdir(__path__[0]))  # noqa: PTH208 - names, not paths
    return [name.removesuffix(".py") for name in names if name.startswith("tb") and name.endswith(".py")]


def _rules(files: list[str]) -> dict[str, Rule]:
    found = [import_module(f"{__name__}.{name}").RULE for name in files]
    rules = {rule.code: rule for rule in sorted(found, key=lambda rule: rule.code)}
    assert len(rules) == len(found), "two rules have one code"
    return rules


def __getattr__(name: str) -> Any:
    if name != "RULES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["RULES"] = _rules(_files())
    return globals()["RULES"]
