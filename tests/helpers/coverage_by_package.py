"""Print line and branch coverage of each measured package, from the .coverage file of the last test run.

Exits with 1 if a package is below the limit.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import coverage

LIMIT = 90.0


def percentages(report: dict[str, object]) -> dict[str, float]:
    """Package -> percent of lines and branches that ran."""
    run: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    files: dict[str, dict[str, dict[str, int]]] = report["files"]  # type: ignore[assignment]
    for name, entry in files.items():
        package = Path(name).as_posix().split("tiebeam/", 1)[1].split("/")[0]
        summary = entry["summary"]
        run[package] += summary["covered_lines"] + summary["covered_branches"]
        total[package] += summary["num_statements"] + summary["num_branches"]
    return {package: 100 * run[package] / total[package] for package in total}


def main() -> int:
    data = coverage.Coverage()
    data.load()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        data.json_report(outfile=file.name)
        found = percentages(json.loads(Path(file.name).read_text()))
    for package, percent in sorted(found.items()):
        print(f"coverage {package:<12} {percent:5.1f}% of lines and branches")
    low = [package for package, percent in found.items() if percent < LIMIT]
    if low:
        print(f"below {LIMIT:.0f}%: {', '.join(low)}", file=sys.stderr)
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
