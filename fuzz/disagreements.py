"""Where we and a reference reader differ on purpose: format, what happens (a pattern), why.

The pattern is searched in one line that the worker writes:

    refused: OUR MESSAGE | accepted by the reference
    accepted | refused by the reference: TYPE: MESSAGE
    differ: OURS | REFERENCE

Each entry is explained in docs/reliability.md. What matches none is a bug, here or there.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Allowed(NamedTuple):
    format: str
    pattern: str
    reason: str


ALLOWED: list[Allowed] = []


def allowed(format: str, line: str) -> Allowed | None:
    return next((a for a in ALLOWED if a.format == format and re.search(a.pattern, line, re.DOTALL)), None)
