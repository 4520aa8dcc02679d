"""Output of the verbs: the console, the JSON document, and an ASCII fallback for the bars' characters.

Layout (columns, bars, colours) is in tiebeam._text, which `str(report)` uses too; its names are available here.
Everything that is printed for people goes through `visible`, because names and texts come from untrusted files:
`console().print`, `echo` and `Progress` apply it. JSON keeps the true text and escapes it as JSON does.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol

from tiebeam._pattern import pattern
from tiebeam._text import (
    BAR_WIDTH,
    ERROR,
    FAINT,
    SECOND_TABLE,
    TABLE,
    TIED,
    TRUNK,
    UNTIED,
    WARNING,
    Line,
    Paragraph,
    accent,
    bar,
    columns,
    styled,
    wrapped,
)
from tiebeam._visible import visible

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "BAR_WIDTH",
    "ERROR",
    "FAINT",
    "SECOND_TABLE",
    "TABLE",
    "TIED",
    "TRUNK",
    "UNTIED",
    "WARNING",
    "Line",
    "Paragraph",
    "accent",
    "bar",
    "columns",
    "console",
    "echo",
    "emit_json",
    "styled",
    "wrapped",
]

_NOT_IN_A_LOG = pattern(r"\x7f|#(?=#(?:vso)?\[)")  # JSON leaves them, a terminal or a CI runner acts on them
_ASCII = {TRUNK: "#", TABLE: ".", SECOND_TABLE: ":", "●": "*", "○": "o", "·": "-", "×": "x", "…": "..."}


class AnyConsole(Protocol):
    """What the verbs use of a console."""

    @property
    def width(self) -> int: ...

    def print(self, *objects: Any, style: str = "") -> None: ...


class PlainConsole:
    """Prints lines without styles, and does without rich, whose import takes longer than reading a header."""

    def __init__(self, width: int) -> None:
        self.width = width

    def print(self, *objects: Any, style: str = "") -> None:
        """Print strings and lines, one blank between them; `style` is a colour, which plain text has none of."""
        assert all(isinstance(printed, str | Line) for printed in objects), objects
        sys.stdout.write(" ".join(map(_safe_text, objects)) + "\n")


def console() -> AnyConsole:
    """Standard output. Honours NO_COLOR, FORCE_COLOR and COLUMNS; a pipe without COLUMNS is 100 wide.

    A string that is printed is one line, unless `wrapped` made it.
    """
    codecs.register_error("tiebeam.ascii", _to_ascii)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="tiebeam.ascii")
    if sys.stdout.isatty():
        return _rich_console(None)
    columns_set = os.environ.get("COLUMNS", "")
    width = int(columns_set) if columns_set.isdecimal() and int(columns_set) else 100
    coloured = any(os.environ.get(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))
    return _rich_console(width) if coloured else PlainConsole(width)


def _rich_console(width: int | None) -> Console:
    from rich.console import Console
    from rich.text import Text

    class VisibleConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*map(safe, objects), **options)

    def safe(printed: Any) -> Any:
        if isinstance(printed, Line):  # made by `styled`; any other loses its colours if it has to be escaped
            shown = visible(printed.plain, keep="\n")
            return printed if shown == printed.plain else Text(shown)
        return _safe_text(printed) if isinstance(printed, str) else printed

    return VisibleConsole(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def _safe_text(printed: str | Line) -> str:
    if isinstance(printed, Line):
        return visible(printed.plain, keep="\n")
    return printed if isinstance(printed, Paragraph) else visible(printed)


def emit_json(document: Any) -> None:
    """One JSON document on standard output, in ASCII: any file name and any terminal encoding works."""
    text = json.dumps(document, indent=2, allow_nan=False)
    text = _NOT_IN_A_LOG.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # can only be inside a string
    sys.stdout.write(text + "\n")


def echo(text: str, err: bool = False) -> None:
    """One line of plain text."""
    import click  # here: `tiebeam inspect` does without it

    click.echo(visible(text), err=err)


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: replace the characters that the output encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ASCII.get(character, "?") for character in error.object[error.start : error.end]), error.end
