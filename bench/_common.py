"""The plain interface of the harness, for benches whose rows are single values: `rows(quick) -> Iterable[Row]`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import harness
from harness import Row, in_child, row

__all__ = ["Row", "in_child", "main", "row"]


def main(rows: Callable[[bool], Iterable[Row]]) -> None:
    harness.main(lambda bench: rows(bench.quick))
