"""One of several processes that torchrun starts: makes the runs of a plan, one after the other, in one process group.

    torchrun --nproc-per-node 2 distributed_worker.py PLAN

PLAN is a JSON file: {"corpus": path, "runs": [{"out", "settings", "layout", "resume", "stop_at", "exact"}, ...]}.
"""

import itertools
import json
import sys
from pathlib import Path

import torch

from tiebeam.corpus import build_corpus
from tiebeam.train import Distribution, Settings, muon, train


def make(run, corpus, processes):
    """One run; `exact` makes it in float64 throughout, so that only a real difference is one."""
    kind = torch.float64 if run.get("exact", True) else torch.float32
    torch.set_default_dtype(kind)
    ordinary, muon.fast_dtype = muon.fast_dtype, lambda device: kind
    steps = itertools.count(1)
    # Whoever is last asks for the stop, to see that all of them follow.
    asks = processes.rank == processes.world - 1
    try:
        return train(
            Settings.from_dict(run["settings"]),
            corpus,
            Path(run["out"]),
            resume=run.get("resume", False),
            interrupted=lambda: next(steps) == run.get("stop_at") and asks,
            processes=processes,
        )
    finally:
        torch.set_default_dtype(torch.float32)
        muon.fast_dtype = ordinary


if __name__ == "__main__":
    plan = json.loads(Path(sys.argv[1]).read_text())
    with Distribution.from_environment() as processes:
        corpus = build_corpus([plan["corpus"]])
        for run in plan["runs"]:
            processes.layout = run["layout"]
            make(run, corpus, processes)
