"""Train in a process of its own, so that its peak memory is its own and nothing is left over from the run before.

The child reads one job from its standard input and answers in lines of JSON: the run's reports, then a result or an
error. It stops when it is told to (SIGINT, which it takes between two steps), and when its parent is gone.
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
class Outcome:
    finished: bool
    steps: int
    peak_bytes: int | None
    """How far the process grew over what it held before training; None where that is unknown."""


def train_apart(
    settings: Settings, corpus: Corpus, out: Path, *, resume: bool, force: bool,
    report: Callable[[dict[str, Any]], None], interrupted: Callable[[], bool],
) -> Outcome:  # fmt: skip
    """`train.train` in a child; the same files, the same errors."""
    job = {
        "settings": settings.to_dict(),
        "corpus": str(corpus.path),
        "out": str(out),
        "resume": resume,
        "force": force,
    }
    home = str(Path(tiebeam.__file__).parent.parent)
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.Popen(  # noqa: S603 (our own program)
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        encoding="utf-8", env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(child.stdout, lines), daemon=True)
    reader.start()
    try:
        child.stdin.write(json.dumps(job))
        child.stdin.close()
        outcome: Outcome | None = None
        while True:
            if interrupted() and child.poll() is None:
                child.send_signal(signal.SIGINT)  # again and again: it may not be listening yet
            try:
                line = lines.get(timeout=0.2)
            except queue.Empty:
                continue
            if line is None:
                break
            said = json.loads(line)
            if "error" in said:
                raise _error(said["kind"], said["error"])
            if "outcome" in said:
                outcome = Outcome(**said["outcome"])
            else:
                report(said)
    except BaseException:
        child.kill()
        raise
    finally:
        child.wait()
        reader.join()
        child.stdout.close()
    if outcome is None:
        raise errors.TiebeamError(
            f"the training of {out} ended without a word (exit code {child.returncode}), perhaps for lack of memory; "
            "give the same command again to go on from its last saved state"
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
    """The child's side."""
    stopped = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints is not an answer

    def say(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    job = json.load(sys.stdin)
    try:
        say({"outcome": _work(job, say, stopped)})
    except errors.TiebeamError as error:
        say({"error": str(error), "kind": type(error).__name__})
    except BrokenPipeError:
        os._exit(1)  # the parent is gone; the state on disk is whole


def _work(job: dict[str, Any], say: Callable[[dict[str, Any]], None], stopped: threading.Event) -> dict[str, Any]:
    from tiebeam.compare.peak_memory import Peak
    from tiebeam.corpus import build_corpus
    from tiebeam.train import Settings, train

    corpus = build_corpus([job["corpus"]])
    with Peak() as peak:
        result = train(
            Settings.from_dict(job["settings"]), corpus, Path(job["out"]), resume=job["resume"], force=job["force"],
            report=say, interrupted=stopped.is_set,
        )  # fmt: skip
    return {"finished": result.finished, "steps": result.steps, "peak_bytes": peak.bytes}
