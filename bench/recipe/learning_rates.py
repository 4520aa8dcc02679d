"""The sweep behind the default learning rates of the vocabulary matrices: the tables of docs/recipe.md.

`tiebeam compare --sweep` without the comparison after it: tied and untied at every width, 60 steps of 1,024 tokens on
the built-in text, one thread. Prints the rows of a width as soon as they are swept (the best in bold), then how the
best rates follow the width. `--start` is where the grids of tied embedding, untied embedding and untied head start
(in italics) instead of at the defaults; `--defaults` trains the defaults only; `--out` keeps what was swept for the
next call.

    python bench/recipe/learning_rates.py [--widths 64,128,256,512] [--start 0.05,0.15,0.008] [--defaults] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tiebeam.compare import VARIANTS
from tiebeam.compare.comparison import base_settings
from tiebeam.compare.learning_rate_sweep import SweptRate, best_between, stored_sweep, sweep, sweep_notes
from tiebeam.compare.model_widths import parse_numbers
from tiebeam.compare.train_runs import Run, plan_runs
from tiebeam.corpus import build_corpus
from tiebeam.train import LearningRates

STEPS = 60
NAMES = {"table": "tied embedding", "embed": "untied embedding", "head": "untied head"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", default="64,128,256,512")
    parser.add_argument("--start")
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    corpus = build_corpus([], vocab=2048, max_bytes=4_000_000)
    base = base_settings(steps=STEPS, layers=2, context=128, batch_tokens=1024, validation_tokens=16384, threads=1)
    if options.start:
        table, embed, head = map(float, options.start.split(","))
        base = replace(base, rates=LearningRates(table=table, embed=embed, head=head))
    grid = {"factors": (1.0,), "most": 1} if options.defaults else {}
    kept = stored_sweep(json.loads(options.out.read_text())) if options.out and options.out.is_file() else []
    print("| width | rate | best, by a parabola | held-out bits per byte by peak learning rate |\n|---:|---|---:|---|")
    groups = plan_runs(
        base, [VARIANTS["tied"], VARIANTS["untied"]], [corpus], parse_numbers(options.widths, "widths"),
        [0], Path("unused"), match="steps", anchor="tied", threads=1,
    )  # fmt: skip
    for run in [run for runs in groups for run in runs]:
        if (run.variant, run.width) not in {(one.variant, one.width) for one in kept}:
            kept += sweep([run], STEPS, **grid)
            if options.out:
                options.out.write_text(json.dumps([one.to_dict() for one in kept]))
        show([one for one in kept if (one.variant, one.width) == (run.variant, run.width)], run)
    if not options.defaults:
        print("", *sweep_notes(kept), sep="\n")


def show(swept: Sequence[SweptRate], run: Run) -> None:
    for one in swept:
        cells = []
        for rate, loss in zip(one.rates, one.bpb, strict=True):
            name = f"*{rate:.3g}*" if rate == getattr(run.settings.learning_rates, one.role) else f"{rate:.3g}"
            text = "diverged" if loss is None else f"{loss:.4f}"
            cells.append(f"{name}: **{text}**" if rate == one.best else f"{name}: {text}")
        print(f"| {one.width} | {NAMES[one.role]} | {best_between(one):.2g} | {', '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
