"""A full tied step, lookup and head on one table: peak memory in units of the table, and time.

python bench/tied_step.py [--quick] [--json]

One square layer represents the model, so that the table dominates: "one table" is V x D x 4 bytes, and the figure is
the memory of a step beyond the weights.
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py would shadow the standard module

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from _common import Row, in_child, interleaved, main, row
from torch import nn

from tiebeam.nn import TiedEmbedding

SHAPES = [(50257, 768, 4096), (128256, 2048, 1024)]  # vocabulary, width, tokens
QUICK = [(50257, 768, 1024), (128256, 2048, 512)]


class Step(nn.Module):
    def __init__(self, vocab: int, dim: int, tokens: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = TiedEmbedding(vocab, dim)
        self.layer = nn.Linear(dim, dim, bias=False)
        self.ids, self.targets = torch.randint(vocab, (2, tokens))

    def ours(self) -> torch.Tensor:
        return self.table.loss(self.layer(self.table.embed(self.ids)), self.targets)

    def plain(self) -> torch.Tensor:
        x = self.layer(F.embedding(self.ids, self.table.weight))
        return F.cross_entropy(F.linear(x, self.table.weight), self.targets)


def run(step: Step, side: str) -> None:
    step.zero_grad(set_to_none=True)
    loss: Callable[[], torch.Tensor] = getattr(step, side)
    loss().backward()


MEMORY = """
import sys
sys.path.append(sys.argv[1])
import json
from tied_step import Step, run

def status(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))

side, shape = sys.argv[2], [int(x) for x in sys.argv[3:]]
run(Step(64, 16, 32), side)
step = Step(*shape)
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # reset the high-water mark
run(step, side)
print(json.dumps({"tables": (status("VmHWM") - before) / (4 * shape[0] * shape[1])}))
"""


def tables_held(side: str, shape: tuple[int, int, int]) -> float:
    return in_child(MEMORY, str(Path(__file__).parent), side, *map(str, shape))["tables"]


def rows(quick: bool) -> Iterator[Row]:
    for shape in QUICK if quick else SHAPES:
        vocab, dim, tokens = shape
        label = f"{vocab} x {dim}, {tokens} tokens"
        held = {side: tables_held(side, shape) for side in ("ours", "plain")}
        large = vocab * dim * 4 >= 1e9
        if large:
            yield row(f"{label}: peak beyond the weights", held["ours"], "one table", "<= 1.2")
        yield row(f"{label}: peak beyond the weights", held["ours"] / held["plain"], "plain PyTorch", "<= 0.5")
        step = Step(*shape)
        best = interleaved(
            {side: lambda side=side, step=step: run(step, side) for side in held}, rounds=2 if quick else 5
        )
        yield row(f"{label}: time", best["ours"] / best["plain"], "plain PyTorch", "<= 1.0" if large else "<= 0.78")


if __name__ == "__main__":
    main(rows)
