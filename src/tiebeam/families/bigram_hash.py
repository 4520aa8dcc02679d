"""A hashed bigram table in a checkpoint: its key in config.json, and the row of a bigram for torch and NumPy."""

from __future__ import annotations

from typing import Any

from tiebeam.errors import UnreadableInput
from tiebeam.families.config_fields import Fields

FIRST = 0
"""The row of a position that has no token before it."""
_PREVIOUS, _CURRENT = 1_000_003, 7_368_787  # odd primes: neighbouring ids do not collide in a row


def bigram_row(previous: Any, current: Any, rows: int) -> Any:
    """The row of a bigram in a table of `rows` rows, from 1; ids are ints or integer arrays of one shape.

    >>> bigram_row(5, 7, 1000), bigram_row(7, 5, 1000)
    (510, 933)
    """
    return 1 + (previous * _PREVIOUS + current * _CURRENT) % (rows - 1)


def bigram_rows(f: Fields) -> int:
    """The rows of the table that a config declares; 0 for none."""
    rows = f.count_or("bigram_rows", 0)
    if rows == 1:
        raise UnreadableInput(f"{f.where}: bigram_rows is 1; a bigram table has at least 2 rows")
    return rows
