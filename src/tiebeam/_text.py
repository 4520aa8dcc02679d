"""Text layout for reports: aligned columns, proportional bars, wrapped paragraphs.

Lines are rich `Text`: the CLI prints them in colour, `str(report)` takes their plain text. rich is imported on use.
Comparisons draw tied in blue and untied in orange. A model's state is blue (tied) or green (untied).
Both are healthy, so neither is yellow or red. No report relies on colour alone.

Names and texts in a report come from files that anyone may have written. `visible` makes them harmless to a terminal,
a log and a page; `styled`, `columns` and `wrapped` apply it to every string that they are given.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tiebeam._visible import visible

if TYPE_CHECKING:
    from rich.text import Text

TIED = "#2a86c8"
UNTIED = "#d55e00"
UNTIED_STATE = "#009e73"
WARNING, ERROR = "bold yellow", "bold red"
FAINT = "bright_black"
TRUNK, TABLE, SECOND_TABLE = "█", "░", "▒"
BAR_WIDTH = 43  # cells; with its label a bar stays within 60 columns


def accent(tied: bool) -> str:
    """The colour of a model's state, tied or untied."""
    return TIED if tied else UNTIED_STATE


def styled(*parts: str | Text | tuple[str, str]) -> Text:
    """One line from parts, each a plain string or a (string, style) tuple."""
    from rich.text import Text

    return Text.assemble(
        *(
            visible(part) if isinstance(part, str) else (visible(part[0]), part[1]) if isinstance(part, tuple) else part
            for part in parts
        )
    )


def columns(rows: Iterable[Sequence[str | Text]], align: str, indent: int = 2, gap: int = 2) -> Iterator[Text]:
    """Rows of cells -> aligned lines without trailing blanks. `align` has one < or > per column."""
    from rich.text import Text

    table = [[Text(visible(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows]
    widths = [max((row[i].cell_len for row in table if i < len(row)), default=0) for i in range(len(align))]
    for row in table:
        line = Text(" " * indent)
        for i, cell in enumerate(row):
            padding = " " * (widths[i] - cell.cell_len)
            line.append((padding if align[i] == ">" else "") + (" " * gap if i else ""))
            line.append_text(cell)
            line.append(padding if align[i] == "<" else "")
        line.rstrip()
        yield line


def bar(parts: Sequence[tuple[int, str, str]], whole: int, width: int = BAR_WIDTH) -> Text:
    """Parts of a whole as cells: (amount, character, style) each. Bars of one whole line up part by part."""
    from rich.text import Text

    pieces, amount, cells = [], 0, 0
    for size, character, style in parts:
        amount += size
        upto = round(width * amount / whole)
        pieces.append((character * (upto - cells), style))
        cells = upto
    return Text.assemble(*pieces)


class Paragraph(str):
    """Lines of text whose line breaks are ours. In any other string that is printed, a line break is escaped."""

    __slots__ = ()


def wrapped(text: str, width: int, indent: int = 2) -> Paragraph:
    """A paragraph wrapped to `width` (at least 40), every line indented."""
    blank, text = " " * indent, visible(text)
    lines = textwrap.fill(text, max(width, 40), initial_indent=blank, subsequent_indent=blank, break_on_hyphens=False)
    return Paragraph(visible(lines, keep="\n"))  # a line may start in the middle of the text
