"""Output of the verbs: the console, the JSON document, and an ASCII fallback for the bars' characters.

Layout (columns, bars, colours) is in tiebeam._text, which `str(report)` uses too; its names are available here.
"""

from __future__ import annotations

import codecs
import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

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
    accent,
    bar,
    columns,
    styled,
    wrapped,
)

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
    "accent",
    "bar",
    "columns",
    "console",
    "emit_json",
    "styled",
    "wrapped",
]

_ASCII = {TRUNK: "#", TABLE: ".", SECOND_TABLE: ":", "●": "*", "○": "o", "·": "-", "×": "x", "…": "..."}


def console() -> Console:
    """Standard output. Honours NO_COLOR, FORCE_COLOR and COLUMNS; a pipe without COLUMNS is 100 wide."""
    from rich.console import Console

    codecs.register_error("tiebeam.ascii", _to_ascii)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="tiebeam.ascii")
    width = None if sys.stdout.isatty() else shutil.get_terminal_size((100, 24)).columns
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def emit_json(document: Any) -> None:
    """One JSON document on standard output, in ASCII: any file name and any terminal encoding works."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: replace the characters that the output encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ASCII.get(character, "?") for character in error.object[error.start : error.end]), error.end
