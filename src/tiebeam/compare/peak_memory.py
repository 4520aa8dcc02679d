"""Peak memory of this process during a block of code. Linux only: the peak must be resettable."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """`with PeakMemory() as peak: ...`; `peak.bytes` is the growth over the memory before the block, None if unknown.

    >>> with PeakMemory() as peak:
    ...     block = bytes(1 << 24)
    >>> peak.bytes is None or peak.bytes >= 0
    True
    """

    bytes: int | None = None

    def __enter__(self) -> PeakMemory:
        gc.collect()
        self._before: int | None = None
        with suppress(OSError, ValueError):
            _RESET.write_text("5")
            self._before = _status_bytes("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            with suppress(OSError, ValueError):
                self.bytes = max(0, _status_bytes("VmHWM") - self._before)


def _status_bytes(key: str) -> int:
    for line in _STATUS.read_text("utf-8").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(key)
