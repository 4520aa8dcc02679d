"""Bits per byte after three minutes on one thread: the default recipe against one AdamW with one learning rate.

Both runs go at the same time, each on a core of its own, so that the machine treats them alike.

    python bench/quality.py [--quick] [--json]

bench/recipes.py compares with nanoGPT's and parameter-golf's recipes; it takes longer than all other benches.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness import Bench, Row, main, row

from tiebeam.corpus import build_corpus

TRAIN = """
import json, sys
from pathlib import Path
from tiebeam.corpus import open_corpus
from tiebeam.train import Settings, train
corpus, out, kind, minutes = sys.argv[1:]
settings = Settings(minutes=float(minutes), optimizer=kind, threads=1, validate_every=0.5)
result = train(settings, open_corpus(Path(corpus)), Path(out))
print(json.dumps({"bpb": result.final.bpb}))
"""


def rows(bench: Bench) -> Iterator[Row]:
    minutes = 0.2 if bench.quick else 3.0
    corpus = build_corpus()
    with tempfile.TemporaryDirectory() as scratch:
        started = {
            kind: subprocess.Popen(
                [sys.executable, "-c", TRAIN, str(corpus.path), str(Path(scratch) / kind), kind, str(minutes)],
                stdout=subprocess.PIPE, text=True,
            )
            for kind in ("muon", "adamw")
        }  # fmt: skip
        printed = {kind: process.communicate()[0] for kind, process in started.items()}
        assert not any(process.returncode for process in started.values()), printed
    found = {kind: json.loads(text.strip().splitlines()[-1])["bpb"] for kind, text in printed.items()}
    bench.say(f"after {minutes:g} minutes: {found['muon']:.3f} bits per byte, AdamW {found['adamw']:.3f}")
    yield row("bits per byte under AdamW after 3 minutes, one thread", found["adamw"] - found["muon"], "bits per byte",
              ">= 0.5" if not bench.quick else "", limited_by="one seed; the steps that a core makes in the time",
              job="bits per byte after 3 minutes against AdamW")  # fmt: skip


if __name__ == "__main__":
    main(rows)
