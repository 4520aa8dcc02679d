"""Kill every verb that writes, at every call that changes the disk and at random times: nothing may be lost.

    python fuzz/kill.py --kills 1000

A parent with everything imported forks one child per run. The child sends itself SIGKILL at its n-th call that changes
the disk (an audit hook sees open for writing, rename, unlink, mkdir, rmdir, link, truncate; write, fsync and renameat2
are wrapped), or the parent kills it after a random time. After each kill: the target is absent, complete, or a run that
can be resumed; the sources have the same bytes; the next run succeeds and leaves exactly the files that an
uninterrupted run leaves, with the same losses. The exit code is 1 if anything was lost or left.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MKL_NUM_THREADS": "1", "MPLBACKEND": "agg"}

from kill_cases import CASES, Case, files, prepare

RESULTS = ("absent", "resumable", "complete")
_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Kill:
    """At the n-th call (`call`), or after a fraction of the time that a whole run takes (`share`)."""

    case: int
    call: int = 0
    share: float = 0.0

    def __str__(self) -> str:
        return f"call {self.call}" if self.call else f"{self.share:.0%} of the time"


def import_everything() -> None:
    """In the parent, so that a child starts in milliseconds. No torch operation runs here: its threads do not fork."""
    import gc

    import matplotlib.figure
    import safetensors.torch
    import scipy.linalg
    import tokenizers
    import torch
    import torch._dynamo
    import torch.distributed.checkpoint
    import torch.distributed.tensor
    import torch.utils.flop_counter

    import tiebeam.cli.doctor
    import tiebeam.cli.generate
    import tiebeam.cli.pack
    import tiebeam.cli.studio
    import tiebeam.cli.tie
    import tiebeam.cli.train
    import tiebeam.cli.unpack
    import tiebeam.cli.untie
    import tiebeam.compare.comparison
    import tiebeam.compare.figures
    import tiebeam.doctor.fix
    import tiebeam.nn
    import tiebeam.studio.pages
    import tiebeam.surgery.joint
    import tiebeam.surgery.joint.distill
    import tiebeam.train.backends.torch
    import tiebeam.train.pack_run

    torch.set_num_threads(1)
    assert all(
        (matplotlib.figure, safetensors.torch, scipy.linalg, tokenizers, tiebeam.cli.train)
    )  # all are used later
    gc.collect()
    gc.freeze()


def count_calls(on_call: Callable[[], None]) -> None:
    """Call `on_call` before every call of this process that changes the disk."""
    from tiebeam._fs import stage

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS or (event == "open" and _opens_for_writing(*arguments)):
            on_call()

    def counted(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            on_call()
            return function(*arguments, **options)

        return call

    for name in ("pwrite", "write", "fsync"):
        setattr(os, name, counted(getattr(os, name)))
    stage._renameat = counted(stage._renameat)
    sys.addaudithook(hook)


def _opens_for_writing(path: Any, mode: Any, flags: Any) -> bool:
    return isinstance(flags, int) and bool(flags & _WRITING) and str(path) != os.devnull


def fork(job: Callable[[], None], kill_after: float | None = None) -> tuple[str, str]:
    """Run `job` in a child: "done", "killed" or "failed", and its error."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _run_child(job, write_end)
    os.close(write_end)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "killed", ""
    return ("done" if os.WEXITSTATUS(status) == 0 else "failed"), said


def _run_child(job: Callable[[], None], write_end: int) -> None:
    code = 1
    try:
        devnull = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(devnull, stream)
        job()
        code = 0
    except BaseException:
        with os.fdopen(os.dup(write_end), "w") as pipe:
            pipe.write(traceback.format_exc())
    finally:
        os._exit(code)


class Bench:
    """A directory with the sources and, per case, what was there before and what an uninterrupted run leaves."""

    def __init__(self, root: Path) -> None:
        self.root, self.shared = root, root / "shared"
        self.calls: dict[int, int] = {}
        self.seconds: dict[int, float] = {}

    def prepare(self, chosen: list[int]) -> None:
        self.shared.mkdir(parents=True)
        self._must(lambda: prepare(self.shared), "the sources")
        self.digest = _digest(self.shared)
        for number in chosen:
            case, counter = CASES[number], self.root / "calls"
            before, after = self.place("before", number), self.place("after", number)
            self._must(lambda: case.before(self.shared, before), f"{case.name}: before")  # noqa: B023 (called at once)
            shutil.copytree(before, after, dirs_exist_ok=True)

            def counting() -> None:
                calls = Counter[str]()
                count_calls(lambda: calls.update(["all"]))
                case.run(self.shared, after)  # noqa: B023 (called at once)
                total = calls["all"]
                counter.write_text(str(total))  # noqa: B023 (called at once)

            started = time.monotonic()
            self._must(counting, f"{case.name}: uninterrupted")
            self.seconds[number] = time.monotonic() - started
            self.calls[number] = int(counter.read_text())
            assert case.state(after, after, before) == "complete", case.name

    def place(self, kind: str, number: int) -> Path:
        path = self.root / f"{kind}-{number}"
        path.mkdir(exist_ok=True)
        return path

    def kill(self, kill: Kill, work: Path) -> tuple[str, list[str]]:
        """One kill and the run after it: the state after the kill, and what was lost or left."""
        case, problems = CASES[kill.case], []
        before, after = self.place("before", kill.case), self.place("after", kill.case)
        shutil.copytree(before, work)

        def dying() -> None:
            left = kill.call

            def on_call() -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            if kill.call:
                count_calls(on_call)
            case.run(self.shared, work)

        wait = None if kill.call else kill.share * self.seconds[kill.case]
        ended, said = fork(dying, wait)
        if ended == "failed":
            return "complete", [f"failed before the kill: {said}"]
        answer = self.root / f"{work.name}.state"

        def look_and_run_again() -> None:
            state = case.state(work, after, before)
            answer.write_text(state)
            case.again(self.shared, work, state)

        ended, said = fork(look_and_run_again)
        state = answer.read_text() if answer.exists() else "lost"
        answer.unlink(missing_ok=True)
        if ended != "done":
            problems.append(f"{'the next run failed' if state != 'lost' else 'lost'}: {said.strip().splitlines()[-1]}")
        elif files(work) != files(after) or _folders(work) != _folders(after):
            problems.append(f"left after the next run: {_differing(work, after)}")
        if _digest(self.shared) != self.digest:
            problems.append("a source was changed")
        shutil.rmtree(work)
        return state, problems

    def _must(self, job: Callable[[], None], what: str) -> None:
        ended, said = fork(job)
        if ended != "done":
            raise SystemExit(f"kill: {what} {ended}:\n{said}")


def _digest(root: Path) -> str:
    running = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        running.update(f"{path.relative_to(root)}\0".encode() + (path.read_bytes() if path.is_file() else b""))
    return running.hexdigest()


def _folders(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir()}


def _differing(work: Path, after: Path) -> str:
    ours, theirs = files(work), files(after)
    names = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    return ", ".join(sorted(names | (_folders(work) ^ _folders(after))))[:300]


def choose(bench: Bench, chosen: list[int], kills: int, per_verb: int | None, seed: int) -> list[Kill]:
    """Every call of each case (or `per_verb` of them), then random times; an even choice if `kills` are fewer."""
    at_calls = [Kill(case, call=n) for case in chosen for n in _evenly(bench.calls[case], per_verb)]
    at_calls = [at_calls[i - 1] for i in _evenly(len(at_calls), kills)]
    numbers = random.Random(seed)
    at_random = [Kill(chosen[i % len(chosen)], share=numbers.uniform(0.02, 1)) for i in range(kills - len(at_calls))]
    mixed = [*at_calls, *at_random]
    numbers.shuffle(mixed)
    return mixed


def _evenly(count: int, wanted: int | None) -> list[int]:
    """`wanted` of the numbers 1..count, spread evenly; all of them if they are no more."""
    if wanted is None or wanted >= count:
        return list(range(1, count + 1))
    return [1 + (2 * i + 1) * count // (2 * wanted) for i in range(wanted)]


def run(kills: int, per_verb: int | None, names: list[str] | None, seed: int, workers: int) -> int:
    """Prints a table; returns the number of problems."""
    import_everything()
    chosen = [i for i, case in enumerate(CASES) if names is None or case.name in names]
    root = Path(tempfile.mkdtemp(prefix="tiebeam-kill-"))
    bench, table, problems, started = Bench(root), Counter[tuple[str, str]](), [], time.monotonic()
    try:
        bench.prepare(chosen)
        planned = choose(bench, chosen, kills, per_verb, seed)
        total = sum(bench.calls[case] for case in chosen)
        covered = len({(kill.case, kill.call) for kill in planned if kill.call})
        _say(f"{len(planned)} kills: {covered} of {total} calls that change the disk, the rest at random times")
        for done, (kill, state, found) in enumerate(_spread(bench, planned, workers), 1):
            name = CASES[kill.case].name
            table[name, "kills"] += 1
            table[name, "at calls"] += bool(kill.call)
            table[name, state] += 1
            for problem in found:
                kind = "strays" if problem.startswith("left") else "losses"
                table[name, kind] += 1
                problems.append(f"{name}, {kill}: {problem}")
            if done % 10 == 0 or done == len(planned):
                left = (time.monotonic() - started) / done * (len(planned) - done)
                _say(f"\r{done}/{len(planned)} kills, {len(problems)} problems, {left:.0f} s left   ", end="")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    _say("")
    _print_table([CASES[i] for i in chosen], table, bench, chosen)
    for problem in problems[:50]:
        print(problem)
    return len(problems)


def _spread(bench: Bench, planned: list[Kill], workers: int) -> Iterator[tuple[Kill, str, list[str]]]:
    """Workers take the kills in turn, each in a directory of its own; all are forks of this process."""
    tasks: Any = multiprocessing.get_context("fork").Queue()
    answers: Any = multiprocessing.get_context("fork").Queue()
    for item in enumerate(planned):
        tasks.put(item)
    processes = [
        multiprocessing.get_context("fork").Process(target=_work, args=(bench, i, tasks, answers), daemon=True)
        for i in range(workers)
    ]
    for _ in processes:
        tasks.put(None)
    for process in processes:
        process.start()
    for _ in planned:
        number, state, found = answers.get()
        yield planned[number], state, found
    for process in processes:
        process.join()


def _work(bench: Bench, worker: int, tasks: Any, answers: Any) -> None:
    while (task := tasks.get()) is not None:
        number, kill = task
        with contextlib.suppress(KeyboardInterrupt):
            try:
                state, found = bench.kill(kill, bench.root / f"work-{worker}-{number}")
            except Exception:
                state, found = "lost", [f"the harness failed: {traceback.format_exc()}"]
            answers.put((number, state, found))


def _print_table(cases: list[Case], table: Counter[tuple[str, str]], bench: Bench, chosen: list[int]) -> None:
    columns = ("kills", "at calls", *RESULTS, "losses", "strays")
    print(f"{'verb':<26}{'calls':>7}" + "".join(f"{column:>11}" for column in columns))
    for case, number in zip(cases, chosen, strict=True):
        cells = "".join(f"{table[case.name, column]:>11}" for column in columns)
        print(f"{case.name:<26}{bench.calls[number]:>7}{cells}")
    totals = {column: sum(table[case.name, column] for case in cases) for column in columns}
    print(f"{'all':<26}{sum(bench.calls.values()):>7}" + "".join(f"{totals[column]:>11}" for column in columns))


def _say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--per-verb", type=int, metavar="N", help="kill each verb at N of its calls, evenly spread")
    parser.add_argument("--verb", action="append", help="only this case; repeatable")
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    sys.exit(1 if run(options.kills, options.per_verb, options.verb, options.seed, options.workers) else 0)


if __name__ == "__main__":
    main()
