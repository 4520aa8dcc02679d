"""Common code of the benchmarks: interleaved timing, memory in fresh child processes, rows with goals.

The machine is noisy, so every figure is a ratio of two things measured alternately in one run, and the
best of several rounds counts for each side. A bench is a file with `rows(quick) -> list[Row]`, ended by
`main(rows)`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """`ratio` is ours over `against`; `goal` reads like '<= 1.5'."""

    name: str
    ratio: float
    against: str
    goal: str
    holds: bool


def row(name: str, ratio: float, against: str, goal: str) -> Row:
    match = re.fullmatch(r"(<=|>=) ([\d.]+)", goal)
    assert match, goal
    bound = float(match[2])
    return Row(name, ratio, against, goal, ratio <= bound if match[1] == "<=" else ratio >= bound)


def interleaved(sides: Mapping[str, Callable[[], object]], rounds: int = 5, warmup: int = 1) -> dict[str, float]:
    """Best seconds of each side over `rounds`, the sides taking turns."""
    best = dict.fromkeys(sides, float("inf"))
    for turn in range(warmup + rounds):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            if turn >= warmup:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def in_child(program: str, *arguments: str) -> dict[str, float]:
    """Run Python source in a fresh process; it may print one JSON object, to which the peak RSS in bytes is added."""
    done = subprocess.run(
        [sys.executable, "-c", program + _PEAK, *arguments], capture_output=True, text=True, check=True
    )
    printed = json.loads(done.stdout) if done.stdout.strip().startswith("{") else {}
    return {**printed, **json.loads(done.stderr.strip().splitlines()[-1])}


# VmHWM and not ru_maxrss where there is /proc: the latter still counts the parent that the child was forked from.
_PEAK = """
import json as _j, pathlib as _p, resource as _r, sys as _s
_status = _p.Path("/proc/self/status")
_lines = _status.read_text().splitlines() if _status.exists() else []
_peak = next((int(l.split()[1]) for l in _lines if l.startswith("VmHWM")), _r.getrusage(_r.RUSAGE_SELF).ru_maxrss)
print(_j.dumps({"peak_rss": _peak * 1024}), file=_s.stderr)
"""


def read_bandwidth(megabytes: int = 512) -> float:
    """Bytes per second that this machine reads from memory, over an array far larger than its caches."""
    import numpy as np

    block = np.ones(megabytes << 18, np.float32)
    vector = np.ones(4096, np.float32)
    matrix = block.reshape(-1, 4096)
    best = min(interleaved({"read": lambda: matrix @ vector}, rounds=5).values())
    return block.nbytes / best


def main(rows: Callable[[bool], Iterable[Row]]) -> None:
    """`python bench/NAME.py [--quick] [--json]`"""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    options = parser.parse_args()
    measured = []
    for r in rows(options.quick):
        measured.append(r)
        if not options.json:
            verdict = "holds" if r.holds else "MISSED"
            print(f"{r.ratio:8.3f} of {r.against}: {r.name}  (goal {r.goal}: {verdict})", flush=True)
    if options.json:
        print(json.dumps([asdict(r) for r in measured], indent=1))
