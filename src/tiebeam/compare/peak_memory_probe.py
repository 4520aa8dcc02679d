"""Peak memory of training a variant: two steps in a fresh subprocess, which no other run has touched.

Runs of a comparison take turns in one process, so their own peak cannot be read there. The probe is not part of the
timed work; it runs after the training, and only if asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import tiebeam
from tiebeam.errors import TiebeamError

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.train import Settings

_STEPS = 2
_CHILD = "from tiebeam.compare.peak_memory_probe import main; main()"


def training_peak(settings: Settings, corpus: Corpus) -> int | None:
    """Memory growth of a process that trains two steps with these settings; None where it cannot be measured."""
    job = {"settings": replace(settings, steps=_STEPS, minutes=None).to_dict(), "corpus": str(corpus.path)}
    path = os.pathsep.join([str(Path(tiebeam.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(  # noqa: S603 (runs our own module)
        [sys.executable, "-c", _CHILD], input=json.dumps(job), capture_output=True, text=True, encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip
    if done.returncode:
        raise TiebeamError(
            f"the subprocess that measures peak memory exited with code {done.returncode}, possibly out of memory; "
            "compare without memory=True"
        )
    peak: int | None = json.loads(done.stdout.splitlines()[-1])["peak_bytes"]
    return peak


def main() -> None:
    """Entry point of the subprocess: one job on stdin, one line of JSON on stdout."""
    from tiebeam.compare.peak_memory import PeakMemory
    from tiebeam.corpus import build_corpus
    from tiebeam.train import Settings
    from tiebeam.train.loop import training

    job = json.loads(sys.stdin.read())
    corpus = build_corpus([job["corpus"]])
    settings = Settings.from_dict(job["settings"])
    with (
        tempfile.TemporaryDirectory() as folder,
        PeakMemory() as peak,
        training(settings, corpus, Path(folder) / "run") as run,
    ):
        run.advance(_STEPS)
    print(json.dumps({"peak_bytes": peak.bytes}))  # noqa: T201 (the answer to the parent process)
