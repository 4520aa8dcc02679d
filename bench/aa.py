"""The comparison against itself: tied against tied with another seed must show no difference.

Forty pairs of a fast setting, each with its own two seeds. The first twenty measure the variation between seeds: the
root mean square of their differences, less the part of the held-out documents. `SEED_ERROR`, the allowance of a
comparison with one seed, must not be below it. The other twenty pairs test it: an interval promises 95%, so at least
19 of 20 must include 0. `--quick` has four pairs of each.

    python bench/aa.py [--quick] [--json]
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py would shadow the standard module

import tempfile
from collections.abc import Iterable, Sequence
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

PAIRS, WIDTH = 20, 64


def rows(quick: bool) -> list[Row]:
    pairs = 4 if quick else PAIRS
    measured, tested = differences(range(pairs)), differences(range(PAIRS, PAIRS + pairs))
    nothing = sum(one.includes_zero for one in tested)
    spread = seed_variation(measured)
    return [
        row(f"variation between seeds {spread:.4f}", spread / SEED_ERROR, f"the {SEED_ERROR} of intervals", "<= 1.0"),
        row("tied against tied, no difference", nothing / pairs, f"{pairs} other pairs", ">= 0.95"),
    ]


def seed_variation(found: Sequence[Estimate]) -> float:
    """Standard deviation of the difference between two seeds, in bits per byte, without the part of the documents."""
    return float(np.sqrt(max(0.0, np.mean([one.difference**2 - one.errors["documents"] ** 2 for one in found]))))


def differences(pairs: Iterable[int], steps: int = 120) -> list[Estimate]:
    """Tied with seed 2i + 1 minus tied with seed 2i, with the interval of a comparison of one seed."""
    corpus = build_corpus([], vocab=1024, max_bytes=4_000_000)
    base = replace(
        base_settings(steps=steps, layers=2, context=128, batch_tokens=1024, validation_tokens=16384, threads=1),
        validate_every=1.0,
    )
    found = []
    for pair in pairs:
        one = _difference(base, corpus, 2 * pair)
        print(f"seeds {2 * pair}, {2 * pair + 1}: {one.difference:+.4f} ({one.low:+.4f} to {one.high:+.4f}), "
              f"documents {one.errors['documents']:.4f}", file=sys.stderr, flush=True)  # fmt: skip
        found.append(one)
    return found


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
