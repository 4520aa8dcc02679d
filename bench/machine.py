"""What this machine can do at best: matrix products, reading and touching memory, copying files, starting Python.

The other benches name these as limits. The figures have no goal.

python bench/machine.py [--quick] [--json]
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from harness import Bench, Row, main, process_seconds
from harness.intervals import Interval

FILE = 512 << 20


def write_fresh_memory() -> None:
    """256 MB that the system has just given: not from the allocator, which keeps memory during a bench."""
    fresh = mmap.mmap(-1, 256 << 20)
    np.frombuffer(fresh, np.float32).fill(1.0)
    fresh.close()


def rows(bench: Bench) -> Iterator[Row]:
    A, B, C = (torch.randn(2048, 2048) for _ in range(3))
    block = np.ones(128 << 20, np.float32)  # 512 MB, far more than any cache
    wide, vector = block.reshape(-1, 4096), np.ones(4096, np.float32)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as scratch:
        source, target = Path(scratch, "source"), Path(scratch, "target")
        with open(source, "wb") as out:
            for _ in range(FILE >> 20):
                out.write(os.urandom(1 << 20))
        found = bench.measure(
            {
                "product": lambda: torch.mm(A, B, out=C),
                "dot": lambda: np.dot(block, block),
                "gemv": lambda: wide @ vector,
                "touch": write_fresh_memory,
                "copy": lambda: shutil.copyfile(source, target),
                "copy and sync": lambda: subprocess.run(f"cp '{source}' '{target}' && sync '{target}'", shell=True),
                "python": lambda: process_seconds(sys.executable, "-c", "pass"),
            },
            "product", 15, judged=("dot",), control=False,
        )  # fmt: skip
    figures = [
        ("float32 matrix product, 2048 x 2048 x 2048", "product", 2 * 2048**3 / 1e9, "GFLOP/s"),
        ("reading memory, numpy.dot of 512 MB", "dot", block.nbytes / 1e9, "GB/s"),
        ("reading memory, matrix-vector product of 512 MB", "gemv", block.nbytes / 1e9, "GB/s"),
        ("writing fresh memory, 256 MB", "touch", (256 << 20) / 1e9, "GB/s"),
        ("copying a file of 512 MB from the page cache", "copy", FILE / 1e9, "GB/s"),
        ("copying a file of 512 MB and sync", "copy and sync", FILE / 1e9, "GB/s"),
        ("start of the interpreter, python -c pass", "python", 0.0, "ms"),
    ]
    for name, side, amount, unit in figures:
        seconds = found.time(side)
        shown = _scaled(seconds, 1000.0) if not amount else _per_second(seconds, amount)
        against = f"{bench.threads} threads" if side in ("product", "dot", "gemv") else "one process"
        yield Row(name, shown.value, against, "", shown.low, shown.high, unit, found.count)


def _scaled(x: Interval, factor: float) -> Interval:
    assert x.low is not None
    assert x.high is not None
    return Interval(x.value * factor, x.low * factor, x.high * factor)


def _per_second(seconds: Interval, amount: float) -> Interval:
    assert seconds.low is not None
    assert seconds.high is not None
    return Interval(amount / seconds.value, amount / seconds.high, amount / seconds.low)


if __name__ == "__main__":
    main(rows)
