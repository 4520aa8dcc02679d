"""Train a run in a subprocess, so that its peak memory can be measured and no state is left from earlier runs.

The child reads one job from stdin and writes lines of JSON: the records of the run, then a result or an error. It stops
on SIGINT (polled between steps), and at once when its parent has exited: stdin then ends.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tiebeam
from tiebeam import errors

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.train import Settings


_CHILD = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from tiebeam.compare.subprocess_run import main
main()
"""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    finished: bool
    steps: int
    peak_bytes: int | None
    """Memory growth of the process during training; None if unknown."""


def train_in_subprocess(
    settings: Settings, corpus: Corpus, out: Path, *, resume: bool,
    report: Callable[[dict[str, Any]], None], interrupted: Callable[[], bool],
) -> RunOutcome:  # fmt: skip
    """Run `train.train` in a child process: same files, same errors."""
    job = {
        "settings": settings.to_dict(),
        "corpus": str(corpus.path),
        "out": str(out),
        "resume": resume,
    }
    home = str(Path(tiebeam.__file__).parent.parent)
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.Popen(  # noqa: S603 (runs our own module)
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        encoding="utf-8", env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(child.stdout, lines), daemon=True)
    reader.start()
    try:
        child.stdin.write(json.dumps(job) + "\n")
        child.stdin.flush()
        outcome: RunOutcome | None = None
        while True:
            if interrupted() and child.poll() is None:
                child.send_signal(signal.SIGINT)  # sent repeatedly: the child may not have its handler yet
            try:
                line = lines.get(timeout=0.2)
            except queue.Empty:
                continue
            if line is None:
                break
            message = json.loads(line)
            if "error" in message:
                raise _error(message["kind"], message["error"])
            if "outcome" in message:
                outcome = RunOutcome(**message["outcome"])
            else:
                report(message)
    except BaseException:
        child.kill()
        raise
    finally:
        child.wait()
        reader.join()
        child.stdout.close()
        with suppress(OSError):  # the child may have exited before it read its job
            child.stdin.close()
    if outcome is None:
        raise errors.TiebeamError(
            f"the training subprocess of {out} exited with code {child.returncode} without a result, possibly out "
            "of memory; run the same command again to resume from its last checkpoint"
        )
    return outcome


def _read(stream: Any, lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _error(kind: str, message: str) -> errors.TiebeamError:
    known = getattr(errors, kind, errors.TiebeamError)
    made = errors.TiebeamError(message) if known is errors.MissingExtra else known(message)
    assert isinstance(made, errors.TiebeamError)
    return made


def main() -> None:
    """Entry point of the child process."""
    stopped = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    answers = sys.stdout
    sys.stdout = sys.stderr  # so that a library's print does not mix with the JSON lines

    def send(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        send({"outcome": _train(job, send, stopped)})
    except errors.TiebeamError as error:
        send({"error": str(error), "kind": type(error).__name__})
    except BrokenPipeError:
        os._exit(1)  # the parent has exited; the checkpoint on disk is complete


def _exit_with_parent() -> None:
    """Exit when stdin ends, so that a run whose parent was killed is free for the next one. The files are complete."""
    sys.stdin.read()
    os._exit(1)


def _train(job: dict[str, Any], send: Callable[[dict[str, Any]], None], stopped: threading.Event) -> dict[str, Any]:
    from tiebeam.compare.peak_memory import PeakMemory
    from tiebeam.corpus import build_corpus
    from tiebeam.train import Settings, train

    corpus = build_corpus([job["corpus"]])
    with PeakMemory() as peak:
        result = train(
            Settings.from_dict(job["settings"]), corpus, Path(job["out"]), resume=job["resume"],
            report=send, interrupted=stopped.is_set,
        )  # fmt: skip
    return {"finished": result.finished, "steps": result.steps, "peak_bytes": peak.bytes}
