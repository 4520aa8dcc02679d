"""Fuzz the readers: python fuzz/run.py --minutes 20 [--formats safetensors gguf] [--seed N] [--tries N] [--replay]

Every format runs in its own subprocess (worker.py) with limited memory. The exit code is 1 if a file crashed a reader,
took more memory than the limit, or was judged differently by the reference reader for a reason that is not listed in
disagreements.py. The smallest failing file of each cause is kept in fuzz/regressions/FORMAT.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cases
from disagreements import allowed
from worker import COUNTS, SECONDS_PER_FILE

TITLES = ("tried", "accepted", "refused", "crashes", "over memory", "disagreements", "(listed)")
FAILURES = ("crashes", "memory", "disagreements")
SILENCE = 15 * SECONDS_PER_FILE  # a worker that reports nothing for so long hangs
START = 600  # seconds for imports and seeds


@dataclass
class FormatRun:
    """One format: its worker is started again whenever a file killed it."""

    format: str
    out: Path
    options: argparse.Namespace
    seconds: float
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    failures: dict[str, str] = field(default_factory=dict)  # by the name of the file that is kept
    running: dict[str, int] = field(default_factory=dict)
    heard: float = 0.0
    ready: bool = False
    file: str = ""

    def total(self, name: str) -> int:
        return self.counts[name] + self.running.get(name, 0)

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix=f"fuzz-{self.format}-") as scratch:
            end, seed = time.monotonic() + self.seconds, self.options.seed
            replay = self._regressions() if self.options.replay else None
            while True:
                seconds, tries = end - time.monotonic(), self.options.tries - self.total("tried")
                died = self._worker(Path(scratch), seed, tries, seconds, replay)
                for name in COUNTS:
                    self.counts[name] += self.running.get(name, 0)
                self.running = {}
                if died is None:
                    break
                self._died(Path(scratch), died)
                if not self.ready or replay is not None or not died.startswith("signal") or time.monotonic() >= end:
                    break
                seed += 1_000_003

    def _regressions(self) -> list[str]:
        folder = cases.REGRESSIONS / self.format
        return [str(path) for path in sorted(folder.iterdir())] if folder.is_dir() else []

    def _worker(self, scratch: Path, seed: int, tries: int, seconds: float, replay: list[str] | None) -> str | None:
        """Run one worker to its end. None, or what it died of."""
        command = [sys.executable, str(cases.HERE / "worker.py"), self.format, str(scratch), "--seed", str(seed)]
        command += ["--tries", str(tries), "--seconds", str(max(0.0, seconds)), "--engine", self.options.engine]
        command += ["--replay", *replay] if replay is not None else []
        errors = scratch / "stderr"
        self.heard, self.ready = time.monotonic(), False
        with errors.open("wb") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
            watch = threading.Thread(target=self._watch, args=(process,), daemon=True)
            watch.start()
            assert process.stdout is not None
            for line in process.stdout:
                self.heard = time.monotonic()
                if line.startswith("{"):
                    self._hear(json.loads(line))
            code = process.wait()
        if code == 0:
            return None
        tail = errors.read_text(errors="replace")[-1500:]
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}: {tail}"

    def _watch(self, process: subprocess.Popen[str]) -> None:
        while process.poll() is None:
            if time.monotonic() - self.heard > (SILENCE if self.ready else START):
                process.kill()
            time.sleep(1)

    def _hear(self, report: dict[str, Any]) -> None:
        if "ready" in report:
            self.ready, self.file = True, str(report["ready"])
        if "counts" in report:
            self.running = dict(report["counts"])
        if "failure" in report:
            source = Path(str(report["failure"]))
            self._keep(source, str(report["kind"]), str(report["text"]))

    def _died(self, scratch: Path, how: str) -> None:
        """The worker died on scratch/case while we, or the reference, were reading it."""
        if not self.ready or not how.startswith("signal"):
            self.counts["crashes"] += 1
            self.failures[how] = f"{self.format}: the harness itself failed: {how}"
            return
        phase = (scratch / "phase").read_text().strip()
        line = f"accepted or refused | the reference died: {how}"
        if phase == "reference" and allowed(self.format, line):
            self.counts["listed"] += 1
            return
        kind = "disagreements" if phase == "reference" else "crashes"
        self.counts["tried"] += 1
        self.counts[kind] += 1
        case = cases.load(scratch / "case", self.file)
        kept = cases.save(case, scratch / "failures" / f"died-{self.options.seed}-{len(self.failures)}", self.file)
        self._keep(kept, kind, f"the process died while {phase} read it: {how}")

    def _keep(self, source: Path, kind: str, text: str) -> None:
        target = self.out / self.format / source.name
        if not self.options.replay:
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                shutil.copy(source, target)
        self.failures.setdefault(source.name, f"{self.format}: {kind}: {text}\n    {target}")


def table(runs: list[FormatRun]) -> str:
    rows: list[tuple[str, ...]] = [("format", *TITLES)]
    rows += [(run.format, *(f"{run.total(name):,}" for name in COUNTS)) for run in runs]
    rows += [("all", *(f"{sum(run.total(name) for run in runs):,}" for name in COUNTS))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def main() -> int:
    known = cases.formats()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=20, help="wall time of the whole run")
    parser.add_argument("--formats", nargs="+", default=known, choices=known, metavar="FORMAT", help=", ".join(known))
    parser.add_argument("--seed", type=int, default=None, help="default: the clock")
    parser.add_argument("--tries", type=int, default=1 << 60, help="at most so many files per format")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="formats at once")
    parser.add_argument("--engine", choices=("plain", "atheris"), help="default: atheris if it is installed")
    parser.add_argument("--out", type=Path, default=cases.REGRESSIONS, help="where failing files are kept")
    parser.add_argument("--replay", action="store_true", help="read what is in fuzz/regressions, and nothing else")
    options = parser.parse_args()
    if options.engine is None:
        options.engine = "atheris" if importlib.util.find_spec("atheris") and not options.replay else "plain"
    if options.seed is None:
        options.seed = int(time.time())
    jobs = max(1, min(options.jobs, len(options.formats)))
    seconds = options.minutes * 60 * jobs / len(options.formats)
    runs = [FormatRun(format, options.out, options, seconds) for format in options.formats]
    print(f"{len(runs)} formats, {jobs} at once, engine {options.engine}, seed {options.seed}", flush=True)
    start = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run.run) for run in runs]
        last = start
        while not all(future.done() for future in futures):
            time.sleep(0.2)
            if time.monotonic() - last > 5:
                last = time.monotonic()
                print(progress(runs, last - start, options.minutes * 60), flush=True)
        for future in futures:
            future.result()
    print(table(runs))
    failures = [failure for run in runs for failure in run.failures.values()]
    for failure in failures:
        print(failure)
    failed = sum(run.total(name) for run in runs for name in FAILURES)
    return 1 if failed or failures else 0


def progress(runs: list[FormatRun], passed: float, seconds: float) -> str:
    tried, failed = sum(run.total("tried") for run in runs), sum(run.total(name) for run in runs for name in FAILURES)
    now = ", ".join(run.format for run in runs if run.running)
    left = max(0, int(seconds - passed))
    return (
        f"{tried:,} files tried, {failed:,} failures; now {now or 'starting'}; at most {left // 60}:{left % 60:02} left"
    )


if __name__ == "__main__":
    raise SystemExit(main())
