"""What fewer rows or fewer bits would cost a model, measured on a text from the page: `trim` and `quantize`, without
writing anything."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.errors import BadRequest
from tiebeam.studio.jobs import Progress

if TYPE_CHECKING:
    from tiebeam.studio.open_models import OpenModel

TEXT_FILE = "my.txt"  # in the commands that are shown
TOKENS = 512
_LEAST_TEXT = 2000  # characters: less has too few tokens to measure on


@dataclass(frozen=True, slots=True)
class WhatIf:
    """`rows` to keep, or None to measure precisions; `text` to measure on."""

    text: str
    rows: int | None = None

    def check(self) -> None:
        if len(self.text) < _LEAST_TEXT:
            raise BadRequest(f"text has {len(self.text):,} characters; at least {_LEAST_TEXT:,} are needed to measure")


def measure(model: OpenModel, asked: WhatIf, progress: Progress) -> dict[str, Any]:
    """The document of one measurement, with the command that makes such a model."""
    return _rows(model, asked, asked.rows, progress) if asked.rows is not None else _bits(model, asked, progress)


def _rows(model: OpenModel, asked: WhatIf, rows: int, progress: Progress) -> dict[str, Any]:
    from tiebeam.surgery import open_source
    from tiebeam.surgery.trim import prepare

    with tempfile.TemporaryDirectory(prefix="tiebeam-studio-") as scratch:
        file = Path(scratch) / TEXT_FILE
        file.write_text(asked.text, encoding="utf-8", errors="replace")
        opened = open_source(model.checkpoint, target=model.source.where)
        trimming = prepare(opened, [file], progress=progress)
        selection = trimming.select(rows, None, None)
        ladder = trimming.ladder([selection], [], tokens=TOKENS, progress=progress)
    source = Path(model.source.where)
    target = source.with_name(f"{source.stem}-{selection.rows}{source.suffix if source.is_file() else ''}")
    words = ["tiebeam", "trim", str(source), str(target), "--text", TEXT_FILE, "--keep", str(selection.rows)]
    return {"rows": selection.rows, "ladder": ladder.to_dict(), "commands": [shlex.join(words)]}


def _bits(model: OpenModel, asked: WhatIf, progress: Progress) -> dict[str, Any]:
    from tiebeam.surgery.quantize import measure_costs, write_commands

    table = measure_costs(model.checkpoint, asked.text, tokens=TOKENS, progress=progress)
    return {"costs": table.to_dict(), "commands": write_commands(table, [TEXT_FILE])}
