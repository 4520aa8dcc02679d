"""A full tied step, lookup and head on one table: time over its matrix products, and peak memory in tables.

python bench/tied_step.py [--quick] [--json]

One square layer represents the model, so that the table dominates: "one table" is V x D x 4 bytes, and the figure is
the memory of a step beyond the weights. The products are the head's three and the layer's three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import STATUS, Bench, Row, Side, in_child, main, row, timed
from loss import LIMIT, chunked_products, products
from torch import nn

from tiebeam.nn import TiedEmbedding

SHAPES = [(50257, 768, 1024), (128256, 2048, 512)]  # vocabulary, width, tokens
JOB = "whole tied step"


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


def step_products(step: Step, of_head: Callable[[torch.Tensor, torch.Tensor], Side]) -> Side:
    h = torch.randn(len(step.ids), step.layer.in_features)
    head, W, out = of_head(h, step.table.weight), step.layer.weight.detach(), torch.ones_like(h)
    dW = torch.ones_like(W)

    def run() -> None:
        torch.mm(h, W.t(), out=out)
        head()
        torch.mm(h, W, out=out)
        torch.mm(h.t(), h, out=dW)

    return run


MEMORY = (
    STATUS
    + """
sys.path.append(sys.argv[1])
from loss import chunked_products
from tied_step import Step, run, step_products
side, shape = sys.argv[2], [int(x) for x in sys.argv[3:]]
run(Step(64, 16, 32), "ours")
step = Step(*shape)
before = reset_peak()
step_products(step, chunked_products)() if side == "limit" else run(step, side)
print(json.dumps({"tables": (status("VmHWM") - before) / (4 * shape[0] * shape[1])}))
"""
)


def tables_held(side: str, shape: tuple[int, int, int]) -> float:
    return in_child(MEMORY, str(Path(__file__).parent), side, *map(str, shape))["tables"]


def rows(bench: Bench) -> Iterator[Row]:
    for shape in SHAPES[:1] if bench.quick else SHAPES:
        vocab, dim, tokens = shape
        label = f"{vocab} x {dim} x {tokens}"
        large = vocab * dim * 4 >= 1e9
        step = Step(*shape)
        sides: dict[str, Side] = {
            "products": step_products(step, products), "ours": partial(run, step, "ours"),
            "limit": step_products(step, chunked_products),
        }  # fmt: skip
        if not large:  # there a step takes seconds
            sides["plain"] = partial(run, step, "plain")
        found = bench.measure(sides, "products", bench.budget * (0.4 if large else 0.25), judged=("ours",), fewest=6,
                              warmup=not large)  # fmt: skip
        yield timed(f"{label}: time", found, "ours", "its matrix products", "<= 1.08", bound=">= 1.0", limit="limit",
                    limited_by=LIMIT, job=JOB)  # fmt: skip
        if not large:
            yield timed(f"{label}: time against plain PyTorch", found, "ours", "plain PyTorch", "<= 1.0", over="plain",
                        limited_by=f"the matrix products, {LIMIT}", limit="limit")  # fmt: skip
        del step, sides
        held = tables_held("ours", shape)
        if large:
            yield row(f"{label}: peak beyond the weights", held, "one table", "<= 1.15", bound=">= 1.0",
                      limited_by="the gradient, a chunk of logits, the layer, and the buffers of the BLAS library",
                      limit=tables_held("limit", shape), job=JOB)  # fmt: skip
        yield row(f"{label}: peak against plain PyTorch", held / tables_held("plain", shape),
                  "plain PyTorch's peak", "<= 0.5", limited_by="the gradient is one table")  # fmt: skip


if __name__ == "__main__":
    main(rows, memory=10)
