"""The sweep behind the defaults of the golf architecture: held-out bits per byte by learning rates, softcap and decay.

Every combination of the values that are given is trained as bench/recipes.py trains our recipe on parameter-golf's
block (9 layers, V 1,024, 1,024 tokens a step, one thread), for a fixed number of steps. `--text shakespeare` is the
part that bench/recipes.py measures on, `--text plays` is Shakespeare after it, `--text embedded` is the other text of
bench/recipes.py. `--peer` adds parameter-golf's recipe.

    python bench/recipe/golf.py [--text plays] [--dim 128] [--steps 336] [--seeds 0,1] [--matrices 0.01,0.02] [--peer]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))

from recipes import FULL, SCHEDULE, SHAKESPEARE_BYTES, SOFTCAP, VOCAB, Run, ours, parameter_golf, shakespeare, together

from tiebeam.corpus import Corpus, build_corpus
from tiebeam.train import LearningRates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", choices=["plays", "shakespeare", "embedded"], default="plays")
    parser.add_argument("--dim", type=int, default=FULL.dim)
    parser.add_argument("--steps", type=int, default=336, help="as many as bench/recipes.py reaches in its 45 s")
    parser.add_argument("--seeds", type=_numbers, default=[0.0])
    for name in ("matrices", "table", "scalars"):
        parser.add_argument(f"--{name}", type=_numbers, help="peak learning rates, with commas; the default if absent")
    parser.add_argument("--softcap", type=_numbers, default=[SOFTCAP])
    parser.add_argument("--decay-from", type=_numbers, default=[SCHEDULE.decay_from])
    parser.add_argument("--peer", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape, defaults = replace(FULL, dim=options.dim), LearningRates.of("golf", options.dim)
    grid = [getattr(options, name) or [getattr(defaults, name)] for name in ("matrices", "table", "scalars")]
    with tempfile.TemporaryDirectory() as scratch:
        corpus = text(options.text, Path(scratch))
        print(f"{options.text}, width {options.dim}, {options.steps} steps, seeds {options.seeds}")
        print(
            "| matrices | table | scalars | softcap | decay from | bits per byte by seed |",
            "|---:|---:|---:|---:|---:|---|",
            sep="\n",
        )
        for matrices, table, scalars, softcap, decay_from in itertools.product(
            *grid, options.softcap, options.decay_from
        ):
            rates = replace(defaults, matrices=matrices, table=table, scalars=scalars)
            schedule = replace(SCHEDULE, decay_from=decay_from)
            make = partial(ours, corpus, shape, "golf", rates, softcap, schedule)
            found = [trained(make(seed=int(seed)), options.steps) for seed in options.seeds]
            print(
                f"| {matrices:g} | {table:g} | {scalars:g} | {softcap:g} | {decay_from:g} | {_cells(found)} |",
                flush=True,
            )
        if options.peer:
            found = [trained(parameter_golf(corpus, shape, int(seed)), options.steps) for seed in options.seeds]
            print(f"| parameter-golf's recipe | | | | | {_cells(found)} |", flush=True)


def text(name: str, scratch: Path) -> Corpus:
    if name != "embedded":
        skip = SHAKESPEARE_BYTES if name == "plays" else 0
        return build_corpus([shakespeare(scratch, skip)], scratch / "corpus", vocab=VOCAB)
    return build_corpus([], scratch / "embedded", vocab=VOCAB, max_bytes=4_000_000)


def trained(run: Run, steps: int) -> float:
    together([run], steps)
    return run.bits_per_byte()


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _cells(found: list[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in found)


if __name__ == "__main__":
    main()
