"""Comparisons for the Runs page: the sentences of their verdict, and report.html.

A report may come from anyone, so its page is served under REPORT_POLICY: its scripts run in an origin of their own that
can neither read the studio's API nor load anything.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from tiebeam.checkpoint.files import LocalFiles
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.studio.model_list import REPORT, Source
from tiebeam.studio.run_stream import read_json

PAGE = "report.html"
_MAX_DOCUMENT, _MAX_PAGE, _MAX_SENTENCES = 32 << 20, 64 << 20, 20


def comparison_summary(comparison: Source) -> dict[str, Any]:
    """Name and verdict of a comparison, and whether it has a page."""
    where = Path(comparison.where)
    return {
        "id": comparison.id,
        "name": comparison.name,
        "sentences": list(_sentences(where, _stamp(where, REPORT))),
        "report": _stamp(where, PAGE) is not None,
    }


@lru_cache(maxsize=64)
def _sentences(where: Path, stamp: tuple[int, ...] | None) -> tuple[str, ...]:
    """Read once per version of the file: the page asks every few seconds, and a report has many numbers."""
    found = read_json(where, REPORT, _MAX_DOCUMENT).get("verdict") if stamp else None
    sentences = found.get("sentences") if isinstance(found, dict) else None
    return (
        tuple(one for one in sentences if isinstance(one, str))[:_MAX_SENTENCES] if isinstance(sentences, list) else ()
    )


def report_page(comparison: Source) -> bytes:
    """The bytes of a comparison's report.html."""
    with LocalFiles(Path(comparison.where)).opened(PAGE) as handle:
        size = os.fstat(handle).st_size
        if size > _MAX_PAGE:
            raise BadRequest(
                f"{PAGE} has {size:,} bytes, which exceeds the limit of {_MAX_PAGE:,}; open the file itself"
            )
        parts = []
        while part := os.read(handle, 1 << 20):
            parts.append(part)
        return b"".join(parts)


def _stamp(where: Path, name: str) -> tuple[int, ...] | None:
    """What changes when a file is written again; None if there is no such file."""
    try:
        with LocalFiles(where).opened(name) as handle:
            status = os.fstat(handle)
            return status.st_ino, status.st_size, status.st_mtime_ns
    except UnreadableInput:
        return None
