"""Text layout for reports: aligned columns, proportional bars, wrapped paragraphs.

A `Line` knows its text and its styles. rich prints it in colour and is imported only for that: plain text, as in a pipe
and in `str(report)`, needs none of it.
Comparisons draw tied in blue and untied in orange. A model's state is blue (tied) or green (untied).
Both are healthy, so neither is yellow or red. No report relies on colour alone.

Names and texts in a report come from files that anyone may have written. `visible` makes them harmless to a terminal,
a log and a page; `styled`, `columns` and `wrapped` apply it to every string that they are given.
"""

from __future__ import annotations

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
_ONE_CELL = frozenset("●○…" + TRUNK + TABLE + SECOND_TABLE)  # beyond Latin, and one column wide
BAR_WIDTH = 43  # cells; with its label a bar stays within 60 columns


def accent(tied: bool) -> str:
    """The colour of a model's state, tied or untied."""
    return TIED if tied else UNTIED_STATE


class Line:
    """One line of text in styled pieces. rich prints it in colour (`__rich__`); `plain` needs no rich."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Iterable[tuple[str, str]] = ()) -> None:
        self.pieces = [piece for piece in pieces if piece[0]]

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.pieces)

    @property
    def cell_len(self) -> int:
        """The columns that it takes on a terminal."""
        return sum(_cells(text) for text, _ in self.pieces)

    def rstrip(self) -> Line:
        """The same without blanks at its end."""
        pieces = list(self.pieces)
        while pieces and not pieces[-1][0].rstrip():
            pieces.pop()
        if pieces:
            pieces[-1] = (pieces[-1][0].rstrip(), pieces[-1][1])
        return Line(pieces)

    def truncated(self, width: int) -> Line:
        """The same if it fits into `width` columns; else its beginning and an ellipsis."""
        plain = self.plain
        if self.cell_len <= width:
            return self
        kept = plain[: width - 1]
        if not _is_simple(plain):  # rich knows which characters take two columns or none
            cut = self.__rich__()
            cut.truncate(width, overflow="ellipsis")
            kept = cut.plain[:-1]
        pieces, at = [], 0
        for text, style in self.pieces:
            pieces.append((kept[at : at + len(text)], style))
            at += len(text)
        return Line([*pieces, ("…", pieces[-1][1])])

    def __str__(self) -> str:
        return self.plain

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text.assemble(*self.pieces)


def _is_simple(text: str) -> bool:
    """Whether every character surely takes one column."""
    return text.isascii() or all(character < "\u0300" or character in _ONE_CELL for character in text)


def _cells(text: str) -> int:
    """The columns of a text. East Asian characters take two and combining marks none, which rich knows."""
    if _is_simple(text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def styled(*parts: str | Line | tuple[str, str]) -> Line:
    """One line from parts, each a plain string, a (string, style) tuple or a line."""
    pieces: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, Line):
            pieces += part.pieces
        else:
            text, style = (part, "") if isinstance(part, str) else part
            pieces.append((visible(text), style))
    return Line(pieces)


def columns(rows: Iterable[Sequence[str | Line]], align: str, indent: int = 2, gap: int = 2) -> Iterator[Line]:
    """Rows of cells -> aligned lines without trailing blanks. `align` has one < or > per column."""
    table = [[styled(cell) for cell in row] for row in rows]
    widths = [max((row[i].cell_len for row in table if i < len(row)), default=0) for i in range(len(align))]
    for row in table:
        pieces = [(" " * indent, "")]
        for i, cell in enumerate(row):
            padding = " " * (widths[i] - cell.cell_len)
            pieces.append(((padding if align[i] == ">" else "") + (" " * gap if i else ""), ""))
            pieces += cell.pieces
            pieces.append((padding if align[i] == "<" else "", ""))
        yield Line(pieces).rstrip()


def bar(parts: Sequence[tuple[int, str, str]], whole: int, width: int = BAR_WIDTH) -> Line:
    """Parts of a whole as cells: (amount, character, style) each. Bars of one whole line up part by part."""
    pieces, amount, cells = [], 0, 0
    for size, character, style in parts:
        amount += size
        upto = round(width * amount / whole)
        pieces.append((character * (upto - cells), style))
        cells = upto
    return Line(pieces)


class Paragraph(str):
    """Lines of text whose line breaks are ours. In any other string that is printed, a line break is escaped."""

    __slots__ = ()


def wrapped(text: str, width: int, indent: int = 2) -> Paragraph:
    """A paragraph wrapped to `width` (at least 40), every line indented."""
    blank, text = " " * indent, visible(text)
    import textwrap

    lines = textwrap.fill(text, max(width, 40), initial_indent=blank, subsequent_indent=blank, break_on_hyphens=False)
    return Paragraph(visible(lines, keep="\n"))  # a line may start in the middle of the text
