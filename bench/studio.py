"""Time from the command `tiebeam studio` to its first answer, and that answer's limit: the imports of its server.

python bench/studio.py [--quick] [--json]
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

from harness import Bench, Row, Seconds, main, process_seconds, timed


def ready(page: str = "") -> Seconds:
    """Seconds until the page is answered; the server is then stopped."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "tiebeam", "studio", "--port", "0", "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://" in line, f"the studio did not start: {line}"
        address = "http://" + line.split("http://")[1].split()[0]
        with urllib.request.urlopen(address + page) as answer:
            assert answer.status == 200
            answer.read()
        return Seconds(time.perf_counter() - start)
    finally:
        process.kill()
        process.wait()


def rows(bench: Bench) -> Iterator[Row]:
    found = bench.measure(
        {
            "imports": lambda: process_seconds(sys.executable, "-c", "import click, starlette.applications, uvicorn"),
            "ready": ready,
        },
        "imports", bench.budget * 0.6, most=20,
    )  # fmt: skip
    seconds = found.time("ready")
    limit = found.time("imports").value
    yield Row("tiebeam studio, ready to answer", seconds.value, "s", "<= 1", seconds.low, seconds.high, "s",
              found.count, limited_by="importing click, starlette and uvicorn, in seconds", limit=limit,
              job="`tiebeam studio` ready to answer, from the command")  # fmt: skip
    yield timed(
        "tiebeam studio, ready to answer, over its imports", found, "ready", "importing click, starlette, uvicorn"
    )


if __name__ == "__main__":
    main(rows)
