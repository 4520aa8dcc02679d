"""The rows that `doctor --rows` lists, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.cli import render

if TYPE_CHECKING:
    from tiebeam._text import Line
    from tiebeam.inspection.row_health import RowGroup, RowHealth

_MEANING = {
    "nan": "hold NaN",
    "inf": "hold infinity",
    "zero": "are zero",
    "identical": "are identical to others",
    "untouched": "look untouched since initialization",
    "mean": "are the mean row",
    "padding": "have the norm of the padding rows",
    "small": "are less than a fifth of the median norm",
    "large": "are more than 5 times the median norm",
}
_SHOWN = 20


def row_lines(health: RowHealth) -> Iterator[Line | str]:
    """A block per matrix: how many rows of each kind, and the first of them with their tokens."""
    for matrix in health.matrices:
        yield f"  rows of {matrix.name}: {matrix.rows:,}, median norm {matrix.median_norm:.3g}"
        if not matrix.groups:
            yield "    all rows look trained"
        for group in matrix.groups:
            yield f"    {len(group.rows):,} {_MEANING[group.kind]}; the tokenizer can produce {len(group.producible):,}"
            yield from render.columns(_cells(group, health), "><<", indent=6)
    for reason in health.skipped:
        yield f"  {reason}"


def _cells(group: RowGroup, health: RowHealth) -> list[list[str]]:
    """The rows that the tokenizer can produce come first: they matter."""
    producible = set(group.producible)
    order = [*group.producible, *(row for row in group.rows if row not in producible)][:_SHOWN]
    cells = []
    for row in order:
        text = health.texts.get(row)
        said = "" if row in producible else "no token" if text is None else "never produced"
        cells.append([str(row), "-" if text is None else repr(text), said])
    left = len(group.rows) - len(order)
    return [*cells, *([["", f"... {left:,} more (--json has all)", ""]] if left else [])]
