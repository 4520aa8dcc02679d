"""Training runs for the Runs page: settings, metrics so far, and a stream of new metrics.

metrics.jsonl has one JSON object per line. A running training appends to it, a resumed one may rewrite it, and a killed
one may leave an incomplete line. So the reader follows the file size, starts over when the file shrinks, and uses
complete lines only. A run directory may come from anyone: files are opened as those of a model are (no link that leaves
the directory, no FIFO), lengths are bounded, and NaN and infinities become null.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiebeam.checkpoint.files import LocalFiles
from tiebeam.errors import UnreadableInput
from tiebeam.studio.model_list import METRICS, RUN, Source, is_model

_MAX_BYTES, _MAX_RECORDS = 16 << 20, 50_000  # of one run, the last ones
_MAX_LINE = 1 << 20
_MAX_SETTINGS = 64 << 10
_LIVE_SECONDS = 60.0  # a run with a newer record is called running


def summary(run: Source) -> dict[str, Any]:
    """Settings, state and latest metrics of a run."""
    where = Path(run.where)
    last: dict[str, Any] = {}
    ended = False
    for record in _tail_records(where, 64 << 10):
        last |= record
        ended = _is_last(record)
    found = read_json(where, RUN, _MAX_SETTINGS).get("settings")
    settings = found if isinstance(found, dict) else {}
    live = _age(where) < _LIVE_SECONDS
    return {
        "id": run.id,
        "name": run.name,
        "tied": _tied(settings, read_json(where, "config.json")),
        "model": is_model(where),
        "live": live,
        "state": "finished" if ended else "running" if live else "stopped",
        "step_tokens": _step_tokens(settings),
        "settings": settings,
        "last": last,
    }


def records(run: Source) -> list[dict[str, Any]]:
    return list(deque(_tail_records(Path(run.where), _MAX_BYTES), maxlen=_MAX_RECORDS))


def follow_metrics(where: Path) -> Iterator[list[dict[str, Any]] | str | None]:
    """Yield lists of new records, "reset" when the file was rewritten, None when there is nothing new. Never ends."""
    at, rest, file_id = 0, b"", None
    files = LocalFiles(where)
    while True:
        reset, raw = False, b""
        try:
            with files.opened(METRICS) as handle:
                status = os.fstat(handle)
                reset = file_id is not None and (status.st_ino != file_id or status.st_size < at)
                at, rest = (0, b"") if reset else (at, rest)
                file_id = status.st_ino
                os.lseek(handle, at, os.SEEK_SET)
                raw = os.read(handle, 1 << 20)
        except UnreadableInput:
            pass
        if reset:
            yield "reset"
        at += len(raw)
        *complete, rest = (rest + raw).split(b"\n")
        rest = rest[:_MAX_LINE]
        found = [record for line in complete if (record := _record(line)) is not None]
        if found or not raw:
            yield found or None


def _tail_records(where: Path, limit: int) -> Iterator[dict[str, Any]]:
    """The records in the last `limit` bytes of a run's metrics."""
    try:
        with LocalFiles(where).opened(METRICS) as handle:
            skipped = max(0, os.fstat(handle).st_size - limit)
            os.lseek(handle, skipped, os.SEEK_SET)
            raw = os.read(handle, limit)
    except UnreadableInput:
        return
    for line in raw.split(b"\n")[1 if skipped else 0 :]:
        record = _record(line)
        if record is not None:
            yield record


def _record(line: bytes) -> dict[str, Any] | None:
    """A line as a record of plain values; lists, such as the loss of every held-out document, are left out."""
    record = _parse(line) if line.strip() and len(line) <= _MAX_LINE else None
    if not isinstance(record, dict):
        return None
    return {key: value for key, value in record.items() if not isinstance(value, list | dict)}


def read_json(where: Path, name: str, limit: int = 1 << 20) -> dict[str, Any]:
    """A JSON object in a file of `where`; empty if there is none, or it is larger than `limit`."""
    try:
        with LocalFiles(where).opened(name) as handle:
            raw = os.read(handle, limit + 1)
    except UnreadableInput:
        return {}
    document = _parse(raw) if len(raw) <= limit else None
    return document if isinstance(document, dict) else {}


def _parse(raw: bytes) -> Any:
    """JSON, in which NaN and numbers beyond a float are null; None if it is not JSON."""
    try:
        return json.loads(raw, parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def _finite(number: str) -> float | None:
    value = float(number)
    return value if math.isfinite(value) else None


def _tied(settings: dict[str, Any], config: dict[str, Any]) -> bool | None:
    """Whether the run started tied; a number in `tie` is the fraction of the run after which it unties."""
    for tie in (settings.get("tie"), config.get("tie_word_embeddings")):
        if isinstance(tie, bool | int | float):
            return tie is not False
    return None


def _is_last(record: dict[str, Any]) -> bool:
    """Whether this is the validation that ends a run."""
    done = record.get("done")
    return "val_bpb" in record and isinstance(done, int | float) and done >= 1


def _step_tokens(settings: dict[str, Any]) -> int | None:
    """Tokens of one step, as `Settings.step_tokens` has them; None if the settings do not say."""
    values = [settings.get(name, default) for name, default in (("batch_tokens", 0), ("context", 0), ("accumulate", 1))]
    if not all(isinstance(value, int) and 0 < value < 1 << 40 for value in values):
        return None
    batch_tokens, context, accumulate = values
    return batch_tokens // (context * accumulate) * accumulate * context or None


def _age(where: Path) -> float:
    """Seconds since the run's last record."""
    try:
        with LocalFiles(where).opened(METRICS) as handle:
            return time.time() - os.fstat(handle).st_mtime
    except UnreadableInput:
        return math.inf
