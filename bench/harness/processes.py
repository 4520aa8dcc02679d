"""Fresh processes: their time, and their peak memory."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from .rounds import Seconds

# glibc's settings to keep memory that is freed, instead of giving it back to the system. The first use of a page is
# expensive, and on a virtual machine whose host takes back free pages it reaches 0.2 GB/s one time and 10 the next.
# With these, all sides of a bench work in memory that was used before. Its children start without them, because their
# memory may be what is measured; one whose time is measured is given them.
KEEP_FREED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


def use_memory(gigabytes: int) -> None:
    """Write to that much memory and free it. With KEEP_FREED the allocator gives it out again."""
    import numpy as np

    np.empty(gigabytes << 28, np.float32).fill(0)


def touch_memory(gigabytes: int) -> None:
    """Make the host of a virtual machine give that much memory, and free it for the page cache and other processes."""
    with mmap.mmap(-1, gigabytes << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            fresh.madvise(mmap.MADV_HUGEPAGE)
        fresh[:: mmap.PAGESIZE] = bytes(len(fresh) // mmap.PAGESIZE)


# VmHWM and not ru_maxrss where there is /proc: the latter still counts the parent that the child was forked from.
_PEAK = """
import json as _j, pathlib as _p, resource as _r, sys as _s
_status = _p.Path("/proc/self/status")
_lines = _status.read_text().splitlines() if _status.exists() else []
_peak = next((int(l.split()[1]) for l in _lines if l.startswith("VmHWM")), _r.getrusage(_r.RUSAGE_SELF).ru_maxrss)
print(_j.dumps({"peak_rss": _peak * 1024}), file=_s.stderr)
"""

# For programs that measure one step: the peak of a step beyond what the process held before it.
STATUS = """
import json, sys
def status(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))
def reset_peak():
    open("/proc/self/clear_refs", "w").write("5")
    return status("VmRSS")
"""


def in_child(program: str, *arguments: str, python: str = sys.executable) -> dict[str, float]:
    """Run Python source in a fresh process; it may print one JSON object, to which the peak RSS in bytes is added."""
    done = subprocess.run([python, "-c", program + _PEAK, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"a measured process failed: {done.stderr.strip()[-600:]}")
    printed = json.loads(done.stdout) if done.stdout.strip().startswith("{") else {}
    return {**printed, **json.loads(done.stderr.strip().splitlines()[-1])}


def process_seconds(*command: str) -> Seconds:
    """Wall time of a command, from its start to its end; its compiled files may be cached."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""})
    return Seconds(time.perf_counter() - start)


def peaks(program: str, launches: int, *arguments: str) -> Sequence[float]:
    return [in_child(program, *arguments)["peak_rss"] for _ in range(launches)]
