"""Results that took long, kept on disk: a model that was looked at before answers at once.

The key is a digest of the checkpoint: its tensor table, and size and time of change of every file. The numbers
themselves are not hashed, because reading them is what takes long.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tiebeam._fs import write_text
from tiebeam._version import __version__
from tiebeam.checkpoint import Checkpoint

MOST_FILES = 256
_FORM = 2  # of the documents; another number drops those of older code
_MOST_BYTES = 16 << 20


def checkpoint_digest(checkpoint: Checkpoint, where: str) -> str:
    """Changes whenever a file of the checkpoint is written."""
    path = Path(where)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    states = []
    for file in files:
        with suppress(OSError):
            state = file.stat()
            states.append((file.name, state.st_size, state.st_mtime_ns))
    table = [(t.name, list(t.shape), t.dtype, t.file) for t in checkpoint.tensors.values()]
    return hashlib.sha256(json.dumps([_FORM, __version__, states, table]).encode()).hexdigest()


class ResultCache:
    """JSON documents by digest and name, at most MOST_FILES of them; the oldest are dropped. Failing to write is no
    error: the result is then computed again."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory

    @property
    def directory(self) -> Path:
        from tiebeam.corpus.store import cache_directory

        return self._directory or cache_directory() / "studio"

    def get_or_compute(self, digest: str, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        path = self.directory / f"{digest[:32]}-{name}.json"
        found = self._read(path)
        if found is not None:
            return found
        document = compute()
        with suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(document))
            self._prune()
        return document

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            if path.stat().st_size > _MOST_BYTES:
                return None
            document = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None

    def _prune(self) -> None:
        kept = sorted(self.directory.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in kept[MOST_FILES:]:
            path.unlink(missing_ok=True)
