"""Runs as the pages show them: the settings, the reports so far, and a stream of those still to come.

metrics.jsonl has one JSON object per line. A run in progress appends to it, a resumed one may rewrite it, and
a kill may leave half a line, so the tail follows the file's size, starts over when it shrinks, and takes
complete lines only.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiebeam.studio.model_list import METRICS, REPORT, RUN, Entry, is_model

_MOST_BYTES = 64 << 20
_LONGEST_LINE = 256 << 10
_QUIET = 60.0  # seconds without a report after which a run is not called live


def summary(entry: Entry) -> dict[str, Any]:
    """The run's own words about itself and its latest report."""
    where = Path(entry.where)
    lines = list(_tail_lines(where / METRICS, 64 << 10))
    last: dict[str, Any] = {}
    for record in lines:
        last |= {key: value for key, value in record.items() if not isinstance(value, list)}
    settings = _document(where / RUN).get("settings")
    config = _document(where / "config.json")
    return {
        "id": entry.id,
        "name": entry.name,
        "tied": _tied(settings if isinstance(settings, dict) else {}, config),
        "model": is_model(where),
        "live": _age(where / METRICS) < _QUIET,
        "settings": settings if isinstance(settings, dict) else {},
        "last": last,
    }


def verdict(path: Path) -> dict[str, Any]:
    """What a comparison found, in its own two sentences."""
    found = _document(path / REPORT, 64 << 20).get("verdict")
    sentences = found.get("sentences") if isinstance(found, dict) else None
    return {"name": path.name, "sentences": [str(one) for one in sentences] if isinstance(sentences, list) else []}


def records(entry: Entry) -> list[dict[str, Any]]:
    return list(_tail_lines(Path(entry.where) / METRICS, _MOST_BYTES))


def follow(path: Path) -> Iterator[list[dict[str, Any]] | str | None]:
    """Lists of new reports; "reset" when the file was rewritten; None when there is nothing new. Never ends."""
    at, rest, file_id = 0, b"", None
    while True:
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                if file_id is not None and (status.st_ino != file_id or status.st_size < at):
                    at, rest = 0, b""
                    yield "reset"
                file_id = status.st_ino
                file.seek(at)
                raw = file.read(1 << 20)
        except OSError:
            raw = b""
        if raw:
            at += len(raw)
            *whole, rest = (rest + raw).split(b"\n")
            rest = rest[:_LONGEST_LINE]
            found = [record for line in whole if (record := _record(line)) is not None]
            if found:
                yield found
            continue
        yield None


def _tail_lines(path: Path, most: int) -> Iterator[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - most))
            raw = file.read(most)
    except OSError:
        return
    lines = raw.split(b"\n")
    for line in lines[1 if size > most else 0 :]:
        record = _record(line)
        if record is not None:
            yield record


def _record(line: bytes) -> dict[str, Any] | None:
    if not line.strip() or len(line) > _LONGEST_LINE:
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return {str(key): _finite(value) for key, value in record.items()} if isinstance(record, dict) else None


def _finite(value: Any) -> Any:
    """JSON has no NaN; a diverged loss is shown as missing."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _document(path: Path, most: int = 1 << 20) -> dict[str, Any]:
    try:
        if path.stat().st_size > most:
            return {}
        document = json.loads(path.read_text(), parse_constant=lambda _: None)
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _tied(settings: dict[str, Any], config: dict[str, Any]) -> bool | None:
    """How the run started; a number in `tie` is the part of it after which the pair is split."""
    for said in (settings.get("tie"), config.get("tie_word_embeddings")):
        if isinstance(said, bool | int | float):
            return said is not False
    return None


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return math.inf
