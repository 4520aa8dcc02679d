"""The command line of a bench: `python bench/NAME.py [--quick] [--json] [--budget SECONDS] [--threads N]`.

A bench is a file with `rows(bench) -> Iterable[Row]` that ends with `main(rows)`. `bench.measure` knows how much time
is left.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .processes import KEEP_FREED, use_memory
from .rounds import FEWEST, LEAST, Rounds, Side, measure
from .rows import Row

THREADS = 2
LONGEST = 300.0  # seconds after which the driver stops a bench
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


def default_threads() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(THREADS, available)


class Bench:
    """What a bench is given: whether it is a quick run, its threads, and a clock that says how much time is left."""

    def __init__(self, quick: bool = False, budget: float = 300.0, threads: int | None = None) -> None:
        self.quick, self.budget, self.threads = quick, budget, threads or default_threads()
        self.start = time.perf_counter()
        self.end = self.start + budget

    @property
    def left(self) -> float:
        """Seconds until the driver stops this bench."""
        return self.start + LONGEST - time.perf_counter()

    def measure(self, sides: Mapping[str, Side], reference: str, seconds: float, **more: Any) -> Rounds:
        """Interleaved rounds for about `seconds` (a quarter in a quick run), within the time of the bench."""
        fewest = min(more.pop("fewest", FEWEST), LEAST if self.quick else math.inf)
        planned = seconds / 4 if self.quick else seconds
        return measure(sides, reference, **{"until": self.end, **more}, seconds=planned, fewest=int(fewest))

    def say(self, text: str) -> None:
        """A line for people, for example that a peer is missing."""
        print(f"  {text}", file=sys.stderr, flush=True)


def main(rows: Callable[[Bench], Iterable[Row]], keep_freed: bool = True, memory: int = 0) -> None:
    """Print the rows of a bench.

    `keep_freed`: no for a bench whose threads allocate, as glibc's heaps of threads are small, or to which the first
    use of a page belongs. `memory`: how many GB are used once before anything is measured, so that not even the host
    of a virtual machine gives them for the first time.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and smaller sizes where a bench has them")
    parser.add_argument("--json", action="store_true", help="one JSON object per row, a row per line")
    parser.add_argument("--budget", type=float, default=300.0, metavar="SECONDS", help="time for all rows")
    parser.add_argument("--threads", type=int, default=default_threads(), metavar="N")
    options, more = parser.parse_known_args()
    _set_environment(options.threads, KEEP_FREED if keep_freed else {})
    if memory:
        use_memory(memory)
    bench = Bench(options.quick, options.budget, options.threads)
    bench.say(f"{options.threads} threads, {options.budget:.0f} s")
    sys.argv[1:] = more
    for found in rows(bench):
        print(json.dumps(found.to_dict()) if options.json else str(found), flush=True)


def _set_environment(threads: int, allocator: Mapping[str, str]) -> None:
    """Start again with the number of threads and the settings of the allocator in the environment, which libraries read
    when they are loaded."""
    wanted = {**dict.fromkeys(_THREAD_VARIABLES, str(threads)), **allocator}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    for name in allocator:
        del os.environ[name]
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
