"""The comparison against itself: tied against tied with another seed must show no difference.

Twenty repetitions of a fast setting, each with its own two seeds. The interval is the one that `tiebeam compare` gives
for one seed: over held-out documents, with an allowance for the variation between seeds. Its 95% are a promise, so at
least 19 of 20 intervals must include 0. The second row checks the allowance: the standard deviation of the differences,
without the part of the documents, over the value that the intervals use.

    python bench/aa.py [--quick] [--json]
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py would shadow the standard module

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from _common import Row, main, row

from tiebeam.compare import VARIANTS
from tiebeam.compare.comparison import base_settings
from tiebeam.compare.held_out_curves import read_curve, windows_of
from tiebeam.compare.paired_statistics import SEED_ERROR, Estimate, estimate
from tiebeam.compare.train_runs import plan_runs, train_in_turns
from tiebeam.corpus import Corpus, build_corpus

REPETITIONS, WIDTH = 20, 64


def rows(quick: bool) -> list[Row]:
    found = differences(4 if quick else REPETITIONS)
    nothing = sum(one.includes_zero for one in found)
    spread = float(np.sqrt(np.mean([one.difference**2 for one in found])))
    return [
        row("tied against tied, no difference", nothing / len(found), f"{len(found)} repetitions", ">= 0.95"),
        row("variation between seeds", spread / SEED_ERROR, f"the {SEED_ERROR} that intervals allow", "<= 1.2"),
    ]


def differences(repetitions: int, steps: int = 120) -> list[Estimate]:
    """Tied with seed 2i + 1 minus tied with seed 2i, with the interval of a comparison of one seed."""
    corpus = build_corpus([], vocab=1024, max_bytes=4_000_000)
    base = replace(
        base_settings(steps=steps, layers=2, context=128, batch_tokens=1024, validation_tokens=16384, threads=1),
        validate_every=1.0,
    )
    return [_difference(base, corpus, 2 * i) for i in range(repetitions)]


def _difference(base: object, corpus: Corpus, seed: int) -> Estimate:
    with tempfile.TemporaryDirectory() as folder:
        groups = plan_runs(
            base, [VARIANTS["tied"]], [corpus], [WIDTH], [seed, seed + 1], Path(folder), match="steps", anchor="tied",
            threads=1,
        )  # fmt: skip
        runs = [run for group in groups for run in group]
        train_in_turns(runs)
        first, second = (read_curve(run, windows_of(run)) for run in runs)
        return estimate((second.losses[-1] - first.losses[-1])[None], first.text_bytes)


if __name__ == "__main__":
    main(rows)
