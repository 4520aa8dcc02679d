"""One Muon step over all matrices of a golf model: ours against torch.optim.Muon and against the same kernels by hand.

By hand: momentum, the direction, its cast, norms, the products with what is added to them, and the weights. Once on
this machine as it is, and once with the bfloat16 instructions of an x86 CPU hidden, which most CPUs lack.

python bench/muon.py [--quick] [--json]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import KEEP_FREED, Bench, Row, main

MEASURE = """
import json, os, sys
dim, layers, hidden = map(int, sys.argv[1:4])
seconds = float(sys.argv[4])
sys.path.append(sys.argv[5])
if hidden:
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"
import torch
from harness import measure, timed
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

momentum, gradients, weights = ([p.detach().clone() for p in matrices()] for _ in range(3))

by_stack = {}
for i, shape in enumerate(shapes):
    by_stack.setdefault(tuple(sorted(shape)), []).append(i)

def least():
    torch._foreach_lerp_(momentum, gradients, 0.05)
    directions = torch._foreach_lerp(gradients, momentum, 0.95)
    for (X, A), members in zip(stacks, by_stack.values()):
        for slot, i in zip(X, members):
            slot.view_as(directions[i]).copy_(directions[i])
        X /= X.norm(dim=(1, 2), keepdim=True)
        for _ in range(5):
            A = X @ X.mT
            X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=0.5), X, beta=0.5)
        for update, i in zip(X, members):
            weights[i].add_(update.view_as(weights[i]), alpha=-0.03)

ours = Muon(matrices(), dtype=dtype).step
theirs = torch.optim.Muon(matrices(), lr=0.03, weight_decay=0.0).step
sides = {"torch": theirs, "ours": ours, "least": least}
found = measure(sides, "torch", seconds=seconds, judged=("ours",), fewest=4)
reason = "norms, torch's batched products with their sums, and one pass each over momentum, direction and weights"
name = f"{layers} layers of {dim}" + (", no bfloat16 instructions" if hidden else "")
rows = [timed(f"Muon step, {name}", found, "ours", "torch.optim.Muon", "<= 0.6" if hidden else "<= 1.1", over="torch",
              limited_by=reason, limit="least")]
if not hidden:
    rows.append(timed(f"Muon step over its kernels, {name}", found, "ours", "the same kernels called by hand",
                      "<= 1.15", over="least", limited_by=reason))
for row in rows:
    print(json.dumps(row.to_dict()))
"""


def rows(bench: Bench) -> Iterator[Row]:
    dim, layers = 256, 4
    for hidden in (0, 1):
        given = map(str, (dim, layers, hidden, bench.budget * 0.3))
        done = subprocess.run([sys.executable, "-c", MEASURE, *given, str(Path(__file__).parent)],
                              capture_output=True, text=True, check=True,
                              env={**os.environ, **KEEP_FREED})  # fmt: skip
        yield from (Row.from_dict(json.loads(line)) for line in done.stdout.splitlines())


if __name__ == "__main__":
    main(rows)
