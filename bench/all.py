"""Run every bench and write docs/benchmarks.md.

python bench/all.py [--quick]
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def run(path: Path, quick: bool) -> list[dict[str, object]]:
    command = [sys.executable, str(path), "--json", *(["--quick"] if quick else [])]
    print(f"{path.name} ...", file=sys.stderr, flush=True)
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def page(measured: dict[str, list[dict[str, object]]]) -> str:
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`. Every figure is a ratio of two things measured alternately in one run.",
        f"Last run: Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}.",
    ]
    for name, rows in measured.items():
        lines += ["", f"## bench/{name}", "", "| what | ratio | against | goal | holds |", "|---|---:|---|---|---|"]
        for r in rows:
            holds = "yes" if r["holds"] else "**no**"
            lines.append(f"| {r['name']} | {r['ratio']:.3f} | {r['against']} | {r['goal']} | {holds} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    quick = "--quick" in sys.argv[1:]
    benches = sorted(p for p in HERE.glob("*.py") if p.name != "all.py" and p.name[0] != "_")
    measured = {path.name: run(path, quick) for path in benches}
    (HERE.parent / "docs" / "benchmarks.md").write_text(page(measured))
    print((HERE.parent / "docs" / "benchmarks.md").read_text())
