"""The peak of this process's memory over a piece of work, where the system lets it be reset (Linux)."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """`with Peak() as peak: ...; peak.bytes` is the growth over what was held before; None where unknown."""

    bytes: int | None = None

    def __enter__(self) -> Peak:
        gc.collect()
        self._before: int | None = None
        with suppress(OSError, ValueError):
            _RESET.write_text("5")
            self._before = _read("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            with suppress(OSError, ValueError):
                self.bytes = max(0, _read("VmHWM") - self._before)


def _read(key: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(key)
