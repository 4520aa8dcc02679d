"""What the verbs share when they speak: a console, two accents, aligned columns, a bar of shares, one JSON.

Blue is tied and orange untied everywhere: a pair that people of any colour vision tell apart, and no verb
relies on colour alone. Where the output cannot carry the bars' characters, plain ASCII stands in for them.
"""

from __future__ import annotations

import codecs
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

TIED = "#2a86c8"
UNTIED = "#d55e00"
FAINT = "bright_black"
TRUNK, TABLE, SECOND_TABLE = "█", "░", "▒"
BAR_WIDTH = 43  # cells; with its label a bar stays within 60 columns

_ASCII = {TRUNK: "#", TABLE: ".", SECOND_TABLE: ":", "●": "*", "○": "o", "·": "-", "×": "x", "…": "..."}


def console() -> Console:
    """Standard output. NO_COLOR, FORCE_COLOR and COLUMNS count; a pipe without COLUMNS is 100 wide."""
    from rich.console import Console

    _speak_ascii_if_needed()
    width = None if sys.stdout.isatty() else shutil.get_terminal_size((100, 24)).columns
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def emit_json(document: Any) -> None:
    """One JSON document on standard output; ASCII, so that any file name and any terminal survive it."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def accent(tied: bool) -> str:
    return TIED if tied else UNTIED


def styled(*parts: str | Text | tuple[str, str]) -> Text:
    """Pieces of one line, each plain or with its style."""
    from rich.text import Text

    return Text.assemble(*parts)


def columns(rows: Iterable[Sequence[str | Text]], align: str, indent: int = 2, gap: int = 2) -> Iterator[Text]:
    """Rows of cells -> aligned lines without trailing blanks. `align` has one < or > per column."""
    from rich.text import Text

    table = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    widths = [max((row[i].cell_len for row in table if i < len(row)), default=0) for i in range(len(align))]
    for row in table:
        line = Text(" " * indent)
        for i, cell in enumerate(row):
            room = " " * (widths[i] - cell.cell_len)
            line.append(room + (" " * gap if i else "") if align[i] == ">" else " " * gap if i else "")
            line.append_text(cell)
            line.append(room if align[i] == "<" else "")
        line.rstrip()
        yield line


def bar(parts: Sequence[tuple[int, str, str]], whole: int, width: int = BAR_WIDTH) -> Text:
    """Parts of a whole as cells: (amount, character, style) each. Bars of one whole line up part by part."""
    pieces, amount, cells = [], 0, 0
    for size, character, style in parts:
        amount += size
        upto = round(width * amount / whole)
        pieces.append((character * (upto - cells), style))
        cells = upto
    return styled(*pieces)


def wrapped(text: str, width: int, indent: int = 2) -> str:
    """A paragraph folded to the console's width, indented throughout."""
    blank = " " * indent
    return textwrap.fill(text, max(width, 40), initial_indent=blank, subsequent_indent=blank, break_on_hyphens=False)


def _speak_ascii_if_needed() -> None:
    codecs.register_error("tiebeam.ascii", _stand_in)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="tiebeam.ascii")


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ASCII.get(character, "?") for character in error.object[error.start : error.end]), error.end
