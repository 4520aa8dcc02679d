"""A finished run as JSON, and what two runs agree on.

{"schema": 1, "started": ..., "minutes": ..., "machine": {...}, "benches": {"loss": {"seconds": ..., "rows": [...]}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .rows import Row, figure

SCHEMA = 1
EXACT = 0.02  # two values without intervals agree within this


def read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise SystemExit(f"{path} is not a run that can be read ({problem}); runs are in .cache/bench") from None
    if found.get("schema") != SCHEMA:
        raise SystemExit(f"{path}: schema {found.get('schema')!r} is not {SCHEMA}; measure it again")
    return found


def write(path: Path, run: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1) + "\n")


def rows_of(run: dict[str, Any]) -> Iterator[tuple[str, Row]]:
    for bench, found in run["benches"].items():
        for one in found["rows"]:
            yield bench, Row.from_dict(one)


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """One bench from two launches: a row that both have is one row whose interval covers both."""
    later = {(r["name"], r["against"]): Row.from_dict(r) for r in second["rows"]}
    rows = []
    for one in map(Row.from_dict, first["rows"]):
        again = later.pop((one.name, one.against), None)
        rows.append((one if again is None else one.joined(again)).to_dict())
    return {
        **first,
        "seconds": round(first["seconds"] + second["seconds"], 1),
        "rows": rows + [row.to_dict() for row in later.values()],
        "said": list(dict.fromkeys([*first["said"], *second["said"]])),
    }


@dataclass(frozen=True)
class Agreement:
    agree: int
    compared: int
    differences: tuple[str, ...]  # a line for every row on which the runs disagree
    unmatched: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"differs  {line}" for line in self.differences] + [
            f"only in one run  {line}" for line in self.unmatched
        ]
        share = 100 * self.agree / self.compared if self.compared else 0.0
        return "\n".join([*lines, f"{self.agree} of {self.compared} rows agree within their intervals ({share:.0f}%)"])


def agreement(first: dict[str, Any], second: dict[str, Any]) -> Agreement:
    """On how many rows two runs agree: their intervals, none narrower than the noise of its A/A control, overlap."""
    one, two = ({(bench, r.name, r.against): r for bench, r in rows_of(run)} for run in (first, second))
    both = [key for key in one if key in two]
    differing = [key for key in both if not overlap(one[key], two[key])]
    return Agreement(
        len(both) - len(differing),
        len(both),
        tuple(f"{bench}: {name}: {figure(one[bench, name, a])} and {figure(two[bench, name, a])}"
              for bench, name, a in differing),
        tuple(f"{bench}: {name} ({against})" for bench, name, against in one.keys() ^ two.keys()),
    )  # fmt: skip


def overlap(a: Row, b: Row) -> bool:
    (low_a, high_a), (low_b, high_b) = _range(a), _range(b)
    return low_a <= high_b and low_b <= high_a


def _range(row: Row) -> tuple[float, float]:
    """The interval, at least as wide as that of the control; 2% around a value that has none."""
    if row.low is None or row.high is None:
        margin = EXACT / 2 * abs(row.value)
    else:
        margin = abs(row.value) * (row.control[2] - row.control[0]) / 2 if row.control else EXACT / 2 * abs(row.value)
    low = row.value if row.low is None else row.low
    high = row.value if row.high is None else row.high
    return min(low, row.value - margin), max(high, row.value + margin)
