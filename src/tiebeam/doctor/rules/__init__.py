"""Every rule of the doctor, one file each. A file here that defines RULE is a rule; nothing else lists it."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tiebeam.doctor.rule import Rule


def _discover() -> dict[str, Rule]:
    found = [import_module(f"{__name__}.{module.name}").RULE for module in pkgutil.iter_modules(__path__)]
    rules = {rule.code: rule for rule in sorted(found, key=lambda rule: rule.code)}
    assert len(rules) == len(found), "two rules have one code"
    return rules


RULES: dict[str, Rule] = _discover()
