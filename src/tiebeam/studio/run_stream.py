"""Training runs for the Runs page: settings, metrics so far, and a stream of new metrics.

metrics.jsonl has one JSON object per line. A running training appends to it, a resumed one may rewrite it, and a killed
one may leave an incomplete line. So the reader follows the file size, starts over when the file shrinks, and uses
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

from tiebeam.studio.model_list import METRICS, REPORT, RUN, Source, is_model

_MAX_BYTES = 64 << 20
_MAX_LINE = 256 << 10
_LIVE_SECONDS = 60.0  # a run with a newer record is called live


def summary(run: Source) -> dict[str, Any]:
    """Settings and latest metrics of a run."""
    where = Path(run.where)
    lines = list(_tail_lines(where / METRICS, 64 << 10))
    last: dict[str, Any] = {}
    for record in lines:
        last |= {key: value for key, value in record.items() if not isinstance(value, list)}
    settings = _document(where / RUN).get("settings")
    config = _document(where / "config.json")
    return {
        "id": run.id,
        "name": run.name,
        "tied": _tied(settings if isinstance(settings, dict) else {}, config),
        "model": is_model(where),
        "live": _age(where / METRICS) < _LIVE_SECONDS,
        "settings": settings if isinstance(settings, dict) else {},
        "last": last,
    }


def comparison_verdict(path: Path) -> dict[str, Any]:
    """The two sentences of a comparison's verdict."""
    found = _document(path / REPORT, 64 << 20).get("verdict")
    sentences = found.get("sentences") if isinstance(found, dict) else None
    return {"name": path.name, "sentences": [str(one) for one in sentences] if isinstance(sentences, list) else []}


def records(run: Source) -> list[dict[str, Any]]:
    return list(_tail_lines(Path(run.where) / METRICS, _MAX_BYTES))


def follow_metrics(path: Path) -> Iterator[list[dict[str, Any]] | str | None]:
    """Yield lists of new records, "reset" when the file was rewritten, None when there is nothing new. Never ends."""
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
            *complete, rest = (rest + raw).split(b"\n")
            rest = rest[:_MAX_LINE]
            found = [record for line in complete if (record := _record(line)) is not None]
            if found:
                yield found
            continue
        yield None


def _tail_lines(path: Path, limit: int) -> Iterator[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - limit))
            raw = file.read(limit)
    except OSError:
        return
    lines = raw.split(b"\n")
    for line in lines[1 if size > limit else 0 :]:
        record = _record(line)
        if record is not None:
            yield record


def _record(line: bytes) -> dict[str, Any] | None:
    if not line.strip() or len(line) > _MAX_LINE:
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return {str(key): _finite(value) for key, value in record.items()} if isinstance(record, dict) else None


def _finite(value: Any) -> Any:
    """JSON has no NaN; a diverged loss becomes null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _document(path: Path, limit: int = 1 << 20) -> dict[str, Any]:
    try:
        if path.stat().st_size > limit:
            return {}
        document = json.loads(path.read_text(), parse_constant=lambda _: None)
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _tied(settings: dict[str, Any], config: dict[str, Any]) -> bool | None:
    """Whether the run started tied; a number in `tie` is the fraction of the run after which it unties."""
    for tie in (settings.get("tie"), config.get("tie_word_embeddings")):
        if isinstance(tie, bool | int | float):
            return tie is not False
    return None


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return math.inf
