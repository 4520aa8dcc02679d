"""One rank of several that torchrun starts: trains the runs of a plan, one after the other, in one process group.

    torchrun --nproc-per-node 2 distributed_worker.py PLAN

PLAN is a JSON file: {"corpus": path, "runs": [{"out", "settings", "layout", "resume", "stop_at", "exact"}, ...]}, and
"looks", a file for what each rank found about a tied model at each stage.
"""

import itertools
import json
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from tiebeam.corpus import build_corpus
from tiebeam.doctor.guard import guard
from tiebeam.nn import GPT, GPTConfig
from tiebeam.surgery.module import unwrap
from tiebeam.train import Distribution, Settings, make_optimizers, muon, train
from tiebeam.train.distributed.ddp import parallelism_for
from tiebeam.train.resume_state import state_tensors


def make(run, corpus, distribution):
    """Train one run; `exact` uses float64 throughout, so that rounding does not hide a real difference."""
    kind = torch.float64 if run.get("exact", True) else torch.float32
    torch.set_default_dtype(kind)
    ordinary, muon.fast_dtype = muon.fast_dtype, lambda device: kind
    steps = itertools.count(1)
    # The last rank requests the stop, and all ranks must follow.
    requests_stop = distribution.rank == distribution.world_size - 1
    try:
        return train(
            Settings.from_dict(run["settings"]),
            corpus,
            Path(run["out"]),
            resume=run.get("resume", False),
            interrupted=lambda: next(steps) == run.get("stop_at") and requests_stop,
            distribution=distribution,
        )
    finally:
        torch.set_default_dtype(torch.float32)
        muon.fast_dtype = ordinary


class CollectiveCounter(TorchDispatchMode):
    """Counts collectives by name."""

    def __init__(self):
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.counts[func._opname] += 1
        return func(*args, **kwargs or {})


def look(layout, distribution):
    """The tie of a model after each stage, and the collectives of a step with one and with three micro-batches."""
    distribution.layout = layout
    parallelism = parallelism_for(distribution)
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=301, dim=32, layers=2, heads=2, kv_heads=1, mlp_dim=48, context=16))
    watch = guard(model, tied=True)
    forward = parallelism.wrap(model)
    found = {"wrapped": [f.code for f in watch.check("wrapping")], "unwraps": unwrap(forward) is model}
    optimizers = make_optimizers(model.roles(), spread=parallelism.muon_spread)
    for optimizer in optimizers:
        watch.watch(optimizer)
    table = model.table.weight
    deliveries: list[torch.Tensor] = []
    table.register_post_accumulate_grad_hook(deliveries.append)
    ids = torch.randint(301, (1, 17))
    for micro_batches in (1, 3):
        with CollectiveCounter() as exchanges:
            for number in range(micro_batches):
                with parallelism.micro_batch(forward, last=number == micro_batches - 1):
                    forward(ids[:, :-1], ids[:, 1:]).backward()
        found[f"exchanged for {micro_batches}"] = exchanges.counts
        optimizers.step()
        optimizers.zero_grad()
    held = [p for o in optimizers for group in o.param_groups for p in group["params"] if p is model.table.weight]
    tensors, _ = state_tensors(model, list(optimizers))
    return found | {
        "stepped": [f.code for f in watch.check("stepping")],
        "same parameter": model.table.weight is table and model.lm_head is None,
        "held by optimizers": len(held),
        "deliveries": len(deliveries),
        "tables saved": sum(name.startswith("model.") and t.shape[0] == 301 for name, t in tensors.items()),
    }


if __name__ == "__main__":
    plan = json.loads(Path(sys.argv[1]).read_text())
    with Distribution.from_environment() as distribution:
        corpus = build_corpus([plan["corpus"]])
        for run in plan["runs"]:
            distribution.layout = run["layout"]
            make(run, corpus, distribution)
        seen = {layout: look(layout, distribution) for layout in ("ddp", "fsdp", "vocab")}
        everyone = [None] * distribution.world_size
        dist.all_gather_object(everyone, seen)
        if distribution.is_main:
            Path(plan["looks"]).write_text(json.dumps(everyone))
    distribution.exit()
