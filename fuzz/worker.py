"""One format in one process: mutate, read, compare with the reference, count. Started by run.py.

The soft limit of the address space is what the process had after its imports and one reading of every seed, plus
GROWTH, so a file that makes the reader grow by more fails with MemoryError. The reference reads without that limit.
What run.py needs if this process dies is on disk: the case in DIRECTORY/case, and who was reading it in
DIRECTORY/phase.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

os.environ["TIEBEAM_TRACEBACK"] = "1"  # an unforeseen exception is what we look for
os.environ["HF_HUB_OFFLINE"] = "1"  # a damaged name must not become a request
ROOT = Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(ROOT / "src"), str(ROOT / "tests")]  # this clone's reader; harnesses use tests/helpers

import cases  # noqa: E402 (found through the path above)
from disagreements import allowed  # noqa: E402
from mutations import mutate_bytes  # noqa: E402

GROWTH = 200 << 20
SECONDS_PER_FILE = 20  # of processor time: a busy machine is not the file's fault
REFERENCE_GROWTH, REFERENCE_SECONDS = 1 << 30, 3  # a reference that takes more refuses the file, for us
COUNTS = ("tried", "accepted", "refused", "crashes", "memory", "disagreements", "listed")


class TooSlow(BaseException):
    """A file took longer than the limit."""


class Outcome(NamedTuple):
    kind: str  # a name of COUNTS
    signature: str  # equal for outcomes of one cause
    text: str


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@contextmanager
def _limits(address_space: int, seconds: int) -> Iterator[None]:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (address_space, hard))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _raise_too_slow(*_: object) -> None:
    raise TooSlow("took too long")


class Worker:
    def __init__(self, format: str, directory: Path) -> None:
        self.format, self.directory = format, directory / "case"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.phase = os.open(directory / "phase", os.O_WRONLY | os.O_CREAT)
        self.harness = cases.load_harness(format)
        self.seeds = self.harness.seeds()
        self.counts = dict.fromkeys(COUNTS, 0)
        self.seen: set[str] = set()
        signal.signal(signal.SIGPROF, _raise_too_slow)
        self.base = 1 << 45
        for seed in self.seeds:  # warm up: lazy imports, thread pools
            outcome = self.attempt(seed, seconds=600)
            assert outcome.kind == "accepted", f"{format}: a seed is not accepted: {outcome.text}"
        self.base = _address_space()

    def attempt(self, case: cases.Case, seconds: int = SECONDS_PER_FILE) -> Outcome:
        """Read one case and classify what happened."""
        cases.write(case, self.directory)
        os.pwrite(self.phase, b"read     ", 0)
        refusal, ours = None, None
        from tiebeam.errors import TiebeamError

        try:
            with _limits(self.base + GROWTH, seconds):
                ours = self.harness.read(self.directory)
        except TiebeamError as error:
            refusal = str(error)
            if not refusal or "\n" in refusal:
                return Outcome("crashes", f"message of {_frame(error)}", f"not one sentence: {refusal!r}")
        except MemoryError as error:
            return Outcome(
                "memory", f"memory {_frame(error)}", f"grew by more than {GROWTH >> 20} MB at {_frame(error)}"
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also TooSlow, and the panics of packages that are written in Rust
            text = "".join(traceback.format_exception(error)[-4:])[-2000:]
            return Outcome("crashes", f"{type(error).__name__} {_frame(error)}", text)
        return self._compare(refusal, ours)

    def _compare(self, refusal: str | None, ours: object) -> Outcome:
        plain = Outcome("accepted", "accepted", "") if refusal is None else Outcome("refused", _shape(refusal), refusal)
        reference = getattr(self.harness, "reference", None)
        if reference is None:
            return plain
        os.pwrite(self.phase, b"reference", 0)
        try:
            with _limits(self.base + REFERENCE_GROWTH, REFERENCE_SECONDS):
                theirs = reference(self.directory)
        except (Exception, TooSlow) as error:
            if refusal is not None:
                return plain
            where = traceback.extract_tb(error.__traceback__)[-1].name
            line = f"accepted | refused by the reference: {type(error).__name__} in {where}: {error}"
            one_by_one = getattr(self.harness, "one_by_one", None)
            if one_by_one is not None:
                return self._confirm(ours, one_by_one, where, line)
        else:
            if refusal is not None:
                line = f"refused: {refusal} | accepted by the reference"
            elif ours == theirs:
                return plain
            else:
                line = f"differ: {ours!r:.1500} | {theirs!r:.1500}"
        reason = allowed(self.format, line)
        if reason:
            self.counts["listed"] += 1
            return Outcome(plain.kind, f"{plain.signature}, but {reason.reason}", line)
        return Outcome("disagreements", _shape(line), line)

    def _confirm(self, ours: object, one_by_one: Any, where: str, line: str) -> Outcome:
        """The reference stopped in the function `where`. Its refusal is listed if all that we returned is right."""
        try:
            with _limits(self.base + REFERENCE_GROWTH, SECONDS_PER_FILE):
                theirs = one_by_one(self.directory, ours)
        except (Exception, TooSlow) as error:
            return Outcome("disagreements", _shape(line), f"{line} | one by one: {error!r}")
        if ours == theirs:
            self.counts["listed"] += 1
            return Outcome("accepted", f"accepted, the reference stops in {where}", line)
        return Outcome("disagreements", _shape(line), f"{line} | ours: {ours!r:.900} | one by one: {theirs!r:.900}")

    def mutated(self, case: cases.Case, rng: Random) -> cases.Case:
        """A damaged copy. A harness that stumbles over what was damaged before leaves it to plain damage."""
        try:
            return self.harness.mutate(dict(case), rng)
        except Exception:
            name = rng.choice(sorted(case) or [self.harness.FILE])
            return {**case, name: mutate_bytes(case.get(name, b""), rng)}

    def record(self, case: cases.Case, outcome: Outcome) -> bool:
        """Count it, and report a failure of a new signature with the smallest case found for it. True: new."""
        self.counts["tried"] += 1
        self.counts[outcome.kind] += 1
        new = outcome.signature not in self.seen
        self.seen.add(outcome.signature)
        if new and outcome.kind in ("crashes", "memory", "disagreements"):
            case = self.reduced(case, outcome)
            name = re.sub(r"[^a-z0-9]+", "-", outcome.signature.lower()).strip("-")[:50].strip("-")
            name += f"-{zlib.crc32(outcome.signature.encode()):08x}"
            path = cases.save(case, self.directory.parent / "failures" / name, self.harness.FILE)
            emit(failure=str(path), kind=outcome.kind, text=outcome.text)
        return new

    def reduced(self, case: cases.Case, outcome: Outcome) -> cases.Case:
        """A smaller case with the same outcome: blocks are removed, halving their length, for at most a few seconds."""
        end = time.monotonic() + 5
        for name in list(case):
            block = max(1, len(case[name]) // 2)
            while block and time.monotonic() < end:
                at = 0
                while at < len(case[name]) and time.monotonic() < end:
                    smaller = {**case, name: case[name][:at] + case[name][at + block :]}
                    again = self.attempt(smaller)
                    if (again.kind, again.signature) == (outcome.kind, outcome.signature):
                        case = smaller
                    else:
                        at += block
                block //= 2
        return case


def _frame(error: BaseException) -> str:
    """The innermost frame of our own code."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/tiebeam/" in f.filename]
    return f"{Path(frames[-1].filename).stem}.{frames[-1].name}" if frames else "harness"


def _shape(text: str) -> str:
    """A message without its values."""
    return re.sub(r"(?<!\w)'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\d[\d,.]*|/\S+", "_", text)[:120]


def emit(**report: Any) -> None:
    print(json.dumps(report), flush=True)


class Budget:
    """Ends the run after some tries or seconds, and reports the counts on the way."""

    def __init__(self, worker: Worker, tries: int, seconds: float) -> None:
        self.worker, self.tries = worker, tries
        self.end, self.next = time.monotonic() + seconds, 0.0

    def over(self) -> bool:
        now = time.monotonic()
        done = now > self.end or self.worker.counts["tried"] >= self.tries
        if done or now > self.next:
            emit(counts=self.worker.counts)
            self.next = now + 0.5
        return done


def plain(worker: Worker, budget: Budget, rng: Random) -> None:
    """Structure-aware mutation of a corpus: the seeds, and every case that reached a new outcome."""
    corpus = list(worker.seeds)
    while not budget.over():
        parent = rng.choice(corpus) if rng.random() < 0.5 else rng.choice(worker.seeds)
        case = worker.mutated(parent, rng)
        outcome = worker.attempt(case)
        if worker.record(case, outcome) and outcome.kind in ("accepted", "refused") and cases.size(case) < 1 << 18:
            corpus.append(case)


def coverage_guided(worker: Worker, budget: Budget, seed: int) -> None:
    """The same mutations, with atheris choosing what to mutate by the code that it reached. Does not return."""
    import atheris

    def unpacked(raw: bytes) -> cases.Case | None:
        with suppress(ValueError, AttributeError, TypeError):
            return cases.unpack(raw)
        return None  # what libFuzzer tries first: nothing, a line feed

    def one(raw: bytes) -> None:
        if budget.over():
            os._exit(0)
        case = unpacked(raw)
        if case is not None:
            worker.record(case, worker.attempt(case))

    def mutate(raw: bytes, limit: int, seed: int) -> bytes:
        rng = Random(seed)
        # Without fresh seeds, damage on damage is nearly always refused at the first check.
        case = unpacked(raw) if rng.random() < 0.6 else None
        return cases.pack(worker.mutated(case or rng.choice(worker.seeds), rng))[:limit]

    corpus = worker.directory.parent / "corpus"
    corpus.mkdir(exist_ok=True)
    for i, case in enumerate(worker.seeds):
        (corpus / f"seed-{i}").write_bytes(cases.pack(case))
    options = [
        "-max_len=1000000",
        "-timeout=1000000",  # 0 would mean at once
        "-rss_limit_mb=0",
        "-verbosity=0",
        "-handle_abrt=0",
        f"-artifact_prefix={worker.directory.parent}/",  # not into the clone
        "-print_final_stats=0",
    ]
    atheris.Setup([sys.argv[0], *options, f"-seed={seed + 1}", str(corpus)], one, custom_mutator=mutate)
    worker.base = _address_space()
    signal.signal(signal.SIGPROF, _raise_too_slow)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("format")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tries", type=int, default=1 << 60)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--engine", choices=("plain", "atheris"), default="plain")
    parser.add_argument("--replay", nargs="*", type=Path)
    options = parser.parse_args()
    faulthandler.enable()
    if options.engine == "atheris":
        import atheris

        covered = getattr(cases.load_harness(options.format), "COVERED", ("tiebeam.checkpoint",))
        atheris.instrument_imports(include=[*covered]).__enter__()  # for good: readers are imported when first used
    worker = Worker(options.format, options.directory)
    emit(ready=worker.harness.FILE)
    budget = Budget(worker, options.tries, options.seconds)
    if options.replay is not None:
        for path in options.replay:
            worker.seen.clear()
            case = cases.load(path, worker.harness.FILE)
            worker.record(case, worker.attempt(case))
        emit(counts=worker.counts)
    elif options.engine == "atheris":
        coverage_guided(worker, budget, options.seed)
    else:
        plain(worker, budget, Random(options.seed))


if __name__ == "__main__":
    main()
