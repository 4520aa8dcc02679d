"""One Muon step over all matrices of a golf model: ours against torch.optim.Muon and against the matrix products alone.

Once on this machine as it is, and once with the bfloat16 instructions of an x86 CPU hidden, which most CPUs lack.
python bench/muon.py [--quick] [--json]
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py would shadow the standard module

from _common import Row, in_child, main, row

MEASURE = """
import json, os, sys
dim, layers, rounds, hidden = map(int, sys.argv[1:5])
sys.path.append(sys.argv[5])
if hidden:
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"
import torch
from _common import interleaved
from tiebeam.train.muon import Muon, fast_dtype

dtype = torch.float32 if hidden else fast_dtype(torch.device("cpu"))
shapes = [(dim, dim), (dim // 2, dim), (dim // 2, dim), (dim, dim), (2 * dim, dim), (dim, 2 * dim)] * layers

def matrices():
    made = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made

stacks = {}
for shape in shapes:
    rows, columns = sorted(shape)
    stacks[rows, columns] = stacks.get((rows, columns), 0) + 1
stacks = [
    (torch.randn(count, rows, columns, dtype=dtype), torch.randn(count, rows, rows, dtype=dtype))
    for (rows, columns), count in stacks.items()
]

def products():
    for X, A in stacks:
        for _ in range(5):
            X @ X.mT, A @ A, A @ X

ours = Muon(matrices(), dtype=dtype).step
theirs = torch.optim.Muon(matrices(), lr=0.03, weight_decay=0.0).step
best = interleaved({"ours": ours, "torch": theirs, "products": products}, rounds)
print(json.dumps({"torch": best["ours"] / best["torch"], "products": best["ours"] / best["products"]}))
"""


def rows(quick: bool) -> list[Row]:
    measured = []
    for dim, layers in [(256, 4)] if quick else [(256, 4), (512, 9)]:
        here, bare = (
            in_child(MEASURE, *map(str, (dim, layers, 3 if quick else 6, hidden)), sys.path[-1]) for hidden in (0, 1)
        )
        shape = f"{layers} layers of {dim}"
        measured += [
            row(shape, here["torch"], "torch.optim.Muon", "<= 1.1"),
            row(shape, here["products"], "its matrix products alone", "<= 1.3"),
            row(f"{shape}, no bfloat16 instructions", bare["torch"], "torch.optim.Muon", "<= 0.6"),
        ]
    return measured


if __name__ == "__main__":
    main(rows)
