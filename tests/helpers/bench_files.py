"""The benches as importable files: bench/ is no package and not on the path of the tests."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[2] / "bench"


def bench_module(name: str) -> Any:
    """`bench_module("harness.rounds")`; the directory is on the path only while this imports."""
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCH))
