"""How many threads a CPU run should take: those that are free.

Two OpenMP threads on one free core fall to a third of one thread's speed, because each waits for the other.
"""

from __future__ import annotations

import os


def free_threads() -> int:
    """Cores that this process may use, less those that others have kept busy over the last minute."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        cores = os.cpu_count() or 1
    try:
        busy = os.getloadavg()[0]
    except OSError:
        busy = 0.0
    return max(1, min(cores, round(cores - busy + 0.5)))
