"""Run the benches, keep the run as JSON, and write docs/benchmarks.md.

    python bench/all.py                          every bench; under 40 minutes on an idle machine
    python bench/all.py --only loss decode       measure these again, and put them into the last run
    python bench/all.py --quick                  a trial with fewer rounds; the page is not written
    python bench/all.py --compare A.json B.json  on how many rows two runs agree
    python bench/all.py --page RUN.json          write the page from a kept run

A bench that fails is printed, the others go on, and the exit code is 1 at the end.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import machine, runs
from harness.command import LONGEST, default_threads
from harness.page import page
from harness.rows import Row

HERE = Path(__file__).resolve().parent
RUNS = HERE.parent / ".cache" / "bench"
PAGE = HERE.parent / "docs" / "benchmarks.md"
TOTAL = 38 * 60.0  # seconds for all benches: when a run is late, as on a slow machine, the later ones get fewer rounds
SETUP = 1.25  # what a bench takes in all, over its budget, on an idle machine
LEAST = 0.3  # of its budget that a bench gets however late it is
GRACE = 120.0  # seconds that a long bench may pass its budget before it is stopped
QUICK = 0.25  # of the time in a trial run


@dataclass(frozen=True)
class Entry:
    """A bench: its file, its time, the arguments of each of its parts, and how often it is launched in a run.

    A process places its matrices in memory once, and a host may be busy for minutes: both move a ratio by more than
    its rounds differ. A second launch, after all other benches, shows by how much. The time is for all launches. Parts
    are processes of their own, so that none takes longer than five minutes.
    """

    file: str
    budget: float
    parts: tuple[tuple[str, ...], ...] = ((),)
    launches: int = 1

    @property
    def each(self) -> float:
        """Seconds for one process."""
        return self.budget / self.launches / len(self.parts)


BENCHES = {
    "machine": Entry("machine.py", 15),
    "loss": Entry("loss.py", 60),
    "loss-large": Entry("loss.py", 170, (("--shape", "50257,768,4096"), ("--shape", "128256,2048,512"))),
    "loss-one-thread": Entry("loss.py", 70, (("--threads", "1"),)),
    "loss-peers": Entry("loss_peers.py", 185, ((), ("--shape", "128256,2048,512"))),
    "loss-memory": Entry("loss_peers.py", 60, (("--memory",),)),
    "tied-step": Entry("tied_step.py", 90),
    "inspect": Entry("inspection.py", 64, launches=2),
    "surgery": Entry("surgery.py", 160),
    "merge": Entry("merge.py", 40),
    "dequantize": Entry("dequantize.py", 60),
    "decode": Entry("decode.py", 60),
    "llama-cpp": Entry("llama_cpp.py", 15),
    "train": Entry("train.py", 95),
    "quality": Entry("quality.py", 210),
    "lens": Entry("lens.py", 100),
    "corpus": Entry("corpus.py", 25),
    "studio": Entry("studio.py", 10),
    "muon": Entry("muon.py", 20),
    "bigrams": Entry("bigrams.py", 10),
    "patch": Entry("patch.py", 40),
    "parity": Entry("parity.py", 25),
    "distributed": Entry("distributed.py", 90),
    "distributed-speed": Entry("distributed_speed.py", 40),
    "scaling": Entry("scaling.py", 100),
}
LONG = {
    "loss-largest": Entry("loss.py", 240, (("--shape", "128256,2048,1024"),)),
    "loss-every-shape": Entry("loss.py", 750, tuple(
        ("--threads", "1", "--shape", shape) for shape in ("50257,768,4096", "128256,2048,512", "128256,2048,1024")
    )),
    "loss-peers-every-shape": Entry("loss_peers.py", 480, tuple(
        ("--shape", shape) for shape in ("50257,768,4096", "128256,2048,1024")
    )),
    "aa": Entry("aa.py", 7200),
    "recipes": Entry("recipes.py", 7200),
}  # fmt: skip
NOT_RUN = {
    "the loss at the largest shape, 10 s a step": "python bench/all.py --only loss-largest",
    "the loss on one thread, its larger shapes": "python bench/all.py --only loss-every-shape",
    "the loss against its peers, their other shapes": "python bench/all.py --only loss-peers-every-shape",
    "the comparison against itself, 20 times": "python bench/all.py --only aa",
    "our recipe against nanoGPT's and parameter-golf's": "python bench/all.py --only recipes",
}


def run_bench(
    entry: Entry, part: tuple[str, ...], quick: bool, share: float
) -> tuple[list[dict[str, Any]], list[str], str]:
    """Rows, lines that the bench printed, and why it failed; what was measured before a failure is kept.

    `share` of its time is given to its rounds.
    """
    budget = entry.each * share
    longest = LONGEST if entry.each <= LONGEST else entry.each + GRACE
    command = [sys.executable, str(HERE / entry.file), "--json", "--budget", f"{budget:.1f}", *part]
    process = subprocess.Popen(
        [*command, *(["--quick"] if quick else [])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{HERE.parent / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.extend(_echoed(process)), daemon=True)
    reader.start()
    stopper = threading.Timer(longest, process.kill)
    stopper.start()
    found = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("{"):
                found.append(json.loads(line))
                print(f"  {Row.from_dict(found[-1])}", file=sys.stderr, flush=True)
        code = process.wait()
        late = not stopper.is_alive()
    finally:  # also after Ctrl-C: no bench goes on alone
        stopper.cancel()
        process.kill()
    reader.join(5)
    said = [line.strip() for line in errors if line.startswith("  without")]
    if late:
        return found, said, f"stopped after {longest:.0f} s"
    reason = errors[-1].strip() if errors else "no message"
    return found, said, "" if code == 0 else f"exit code {code}: {reason}"


def _echoed(process: subprocess.Popen[str]) -> list[str]:
    lines = []
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line)
        print(line, end="", file=sys.stderr, flush=True)
    return lines


def run_all(names: list[str], quick: bool, run: dict[str, Any], path: Path, again: str = "") -> None:
    """Run the benches in turn; the file is written after each, so that a run that is stopped keeps what it has.

    `again`: the time, if they are measured once more for a run that is finished.
    """
    known, start = {**BENCHES, **LONG}, time.monotonic()
    launches = [
        (turn, name, part) for turn in range(max(known[n].launches for n in names))
        for name in names if turn < known[name].launches for part in known[name].parts
    ]  # fmt: skip
    planned = [known[name].each * (QUICK if quick else 1.0) for _, name, _ in launches]
    done = set()
    for i, (turn, name, part) in enumerate(launches):
        elapsed, rest = time.monotonic() - start, sum(planned[i:])
        share = QUICK if quick else 1.0 if again else share_of_time(elapsed, rest)
        if turn and share == LEAST:
            print(f"[{i + 1}/{len(launches)}] {name}: not launched again, the run is late", file=sys.stderr)
            continue
        print(f"[{i + 1}/{len(launches)}] {name}: {_clock(elapsed)} elapsed, about {_clock(rest)} left",
              file=sys.stderr, flush=True)  # fmt: skip
        began = time.monotonic()
        rows, said, failure = run_bench(known[name], part, quick, share)
        found = {"seconds": round(time.monotonic() - began, 1), "rows": rows, "said": said, "again": again}
        if name in done:
            found = runs.joined(run["benches"][name], found)
        else:
            run["failed"].pop(name, None)
        done.add(name)
        if failure:
            run["failed"][name] = failure
            print(f"  {name} FAILED: {failure}", file=sys.stderr, flush=True)
        run["benches"][name] = found
        run["benches"] = dict(sorted(run["benches"].items(), key=lambda item: list(known).index(item[0])))
        runs.write(path, run)


def share_of_time(elapsed: float, rest: float) -> float:
    """Of its budget that the next bench gets for its rounds, so that `rest` seconds of budgets end within TOTAL."""
    return min(1.0, max(LEAST, (TOTAL - elapsed) / (SETUP * rest)))


def not_run(run: dict[str, Any]) -> dict[str, str]:
    """The long benches that this run does not have, and their commands."""
    return {what: command for what, command in NOT_RUN.items() if command.split()[-1] not in run["benches"]}


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def newest(quick: bool) -> Path | None:
    return max((path for path in RUNS.glob("*.json") if ("quick" in path.name) == quick), default=None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[*BENCHES, *LONG], default=None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="RUN")
    parser.add_argument("--page", type=Path, metavar="RUN")
    options = parser.parse_args()
    if options.compare:
        found = runs.agreement(*(runs.read(path) for path in options.compare))
        print(found)
        return 0 if found.compared and found.agree >= 0.9 * found.compared else 1
    if options.page:
        run = runs.read(options.page)
        PAGE.write_text(page(run, not_run(run)))
        return 0
    started, began = datetime.datetime.now(datetime.UTC), time.monotonic()
    path = RUNS / f"{started:%Y-%m-%dT%H%M%S}{'-quick' if options.quick else ''}.json"
    last = newest(options.quick) if options.only else None
    if last is not None:
        path, run = last, runs.read(last)
        run["failed"] = run.get("failed", {})
    else:
        run = {"schema": runs.SCHEMA, "started": started.isoformat(), "quick": options.quick, "minutes": 0.0,
               "machine": machine.facts(default_threads()), "benches": {}, "failed": {}}  # fmt: skip
    print(*machine.describe(run["machine"]), sep="\n", file=sys.stderr)
    again, ticks = f"{started:%Y-%m-%d %H:%M}" if last is not None else "", machine.ticks()
    run_all(options.only or list(BENCHES), options.quick, run, path, again)
    if last is None:
        run["minutes"] = round((time.monotonic() - began) / 60, 1)
        run["machine"]["stolen"] = machine.stolen(ticks, machine.ticks())
    runs.write(path, run)
    if not options.quick:
        PAGE.write_text(page(run, not_run(run)))
        print(f"written: {PAGE}", file=sys.stderr)
    print(f"kept: {path}", file=sys.stderr)
    for what, command in not_run(run).items():
        print(f"not run here ({what}): {command}", file=sys.stderr)
    bad = [f"{bench}: {row.name}: {row.verdict}" for bench, row in runs.rows_of(run)
           if row.verdict in ("missed", "measured wrong", "unstable")]  # fmt: skip
    print(*bad, sep="\n", file=sys.stderr)
    return 1 if run["failed"] else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
