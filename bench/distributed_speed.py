"""Training on 2 and 4 gloo ranks with one thread each, against one process with as many threads: tokens per second.

python bench/distributed_speed.py [--quick] [--json]

The groups of ranks are started once and take turns: a group waits on its input until it is told to make some steps.
The model is the default of `tiebeam train`, with the same global batch everywhere. Four ranks share two cores here.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from harness import Bench, Row, Seconds, main, timed
from harness.intervals import median_interval

from tiebeam.corpus import build_corpus

RANK = """
import json, os, sys, time, warnings
warnings.simplefilter("ignore")
from pathlib import Path
corpus, out, layout, threads, tokens = sys.argv[1:]
import torch
torch.set_num_threads(int(threads))
from tiebeam.corpus import open_corpus
from tiebeam.train import Distribution, Settings
from tiebeam.train.loop import training
settings = Settings(steps=100_000, batch_tokens=int(tokens), threads=int(threads), log_every=10**6, validate_every=1.0,
                    save_every=1e9)
where = Distribution.from_environment(shard=layout == "fsdp", shard_vocab=layout == "vocab")
with where, training(settings, open_corpus(Path(corpus)), Path(out), distribution=where) as run:
    for line in sys.stdin:
        start = time.perf_counter()
        run.advance(int(line))
        took = time.perf_counter() - start
        status = Path("/proc/self/status").read_text().splitlines()
        peak = next(int(l.split()[1]) * 1024 for l in status if l.startswith("VmHWM"))
        print(json.dumps({"seconds": took, "peak": peak}), flush=True)
os._exit(0)
"""
STEPS, TOKENS = 2, 4096
GROUPS = {  # name: layout, ranks, threads per rank
    "one process, 2 threads": ("ddp", 1, 2),
    "2 ranks, DDP": ("ddp", 2, 1),
    "2 ranks, FSDP2": ("fsdp", 2, 1),
    "2 ranks, sharded vocabulary": ("vocab", 2, 1),
    "one process, 4 threads": ("ddp", 1, 4),
    "4 ranks, DDP": ("ddp", 4, 1),
    "4 ranks, sharded vocabulary": ("vocab", 4, 1),
}


class Group:
    """The ranks of one run, which wait until they are told to train."""

    def __init__(self, corpus: Path, out: Path, layout: str, ranks: int, threads: int, tokens: int = TOKENS) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        given = [sys.executable, "-c", RANK, str(corpus), str(out), layout, str(threads), str(tokens)]
        self.errors = open(f"{out}.err", "w+")  # noqa: SIM115
        self.ranks = [
            subprocess.Popen(
                given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(port), "RANK": str(i), "LOCAL_RANK": str(i), "WORLD_SIZE": str(ranks)},
            )
            for i in range(ranks)
        ]  # fmt: skip
        self.peak = 0.0

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        self.errors.close()

    def advance(self, steps: int = STEPS) -> Seconds:
        """The slowest rank's seconds per step."""
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write(f"{steps}\n")
            rank.stdin.flush()
        answers = [self._answer(rank) for rank in self.ranks]
        self.peak = max(answer["peak"] for answer in answers)
        return Seconds(max(answer["seconds"] for answer in answers) / steps)

    def _answer(self, rank: subprocess.Popen[str]) -> dict[str, float]:
        assert rank.stdout is not None
        line = rank.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise RuntimeError(f"a rank ended: {self.errors.read().strip()[-500:]}")
        found: dict[str, float] = json.loads(line)
        return found


def rows(bench: Bench) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        corpus = build_corpus([], Path(scratch) / "corpus", max_bytes=500_000)
        for threads in (2, 4):
            names = [name for name, (_, ranks, each) in GROUPS.items() if ranks * each == threads]
            groups = {
                name: stack.enter_context(Group(corpus.path, Path(scratch, name.replace(" ", "-")), *GROUPS[name]))
                for name in names
            }
            found = bench.measure({name: group.advance for name, group in groups.items()}, names[0],
                                  bench.budget * 0.3, fewest=4)  # fmt: skip
            cores = "" if threads <= (os.cpu_count() or 1) else f"; {threads} ranks share {os.cpu_count()} cores"
            for name, group in groups.items():
                speed = median_interval([TOKENS / seconds for seconds in found.seconds[name]])
                yield Row(f"{name}: tokens per second", speed.value, "tokens/s", "", speed.low, speed.high, "/s",
                          found.count, limited_by=f"{group.peak / 1e6:,.0f} MB per rank{cores}")  # fmt: skip
                if name != names[0]:
                    # FSDP2 and a sharded vocabulary save memory, and what they send costs time: no goal.
                    goal = ">= 0.9" if "DDP" in name and threads <= (os.cpu_count() or 1) else ""
                    yield timed(f"{name}: speed", found, name, names[0], goal, speed=True,
                                limited_by="the exchange of gradients" + cores, job="distributed")  # fmt: skip
            for group in groups.values():
                group.__exit__(None, None, None)


if __name__ == "__main__":
    main(rows)
