"""The harness of the benchmarks: interleaved rounds, intervals, rows with goals and limits, runs as JSON."""

from .command import Bench, main
from .intervals import Interval, growth, median, median_interval
from .processes import KEEP_FREED, STATUS, in_child, process_seconds, touch_memory
from .rounds import Rounds, Seconds, Side, measure
from .rows import Row, row, several, timed

__all__ = [
    "KEEP_FREED",
    "STATUS",
    "Bench",
    "Interval",
    "Rounds",
    "Row",
    "Seconds",
    "Side",
    "growth",
    "in_child",
    "main",
    "measure",
    "median",
    "median_interval",
    "process_seconds",
    "row",
    "several",
    "timed",
    "touch_memory",
]
