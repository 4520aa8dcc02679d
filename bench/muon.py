"""One step of Muon over all matrices of a golf model: ours against torch.optim.Muon, and against the bare products.

python bench/muon.py [--quick] [--json]
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py is named like a standard module, and the standard one must win

import torch
from _common import Row, interleaved, main, row
from torch import nn

from tiebeam.train.muon import Muon, fast_dtype


def golf_matrices(dim: int, layers: int) -> list[nn.Parameter]:
    """q, k, v, output, and an MLP twice as wide, with gradients."""
    shapes = [(dim, dim), (dim // 2, dim), (dim // 2, dim), (dim, dim), (2 * dim, dim), (dim, 2 * dim)] * layers
    made = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


def bare_products(parameters: list[nn.Parameter]) -> None:
    """The matrix products of five Newton-Schulz steps, one matrix at a time, and nothing else."""
    dtype = fast_dtype(torch.device("cpu"))
    made = {}
    for parameter in parameters:
        rows, columns = sorted(parameter.shape)
        if (rows, columns) not in made:
            made[rows, columns] = (torch.randn(rows, columns, dtype=dtype), torch.randn(rows, rows, dtype=dtype))
        X, A = made[rows, columns]
        for _ in range(5):
            X @ X.T, A @ A, A @ X


def rows(quick: bool) -> list[Row]:
    torch.manual_seed(0)
    measured = []
    for dim, layers in [(256, 4)] if quick else [(256, 4), (512, 9)]:
        ours, theirs = golf_matrices(dim, layers), golf_matrices(dim, layers)
        sides = {
            "ours": Muon(ours).step,
            "torch": torch.optim.Muon(theirs, lr=0.03, weight_decay=0.0).step,
            "products": lambda ours=ours: bare_products(ours),
        }
        best = interleaved(sides, rounds=3 if quick else 6)
        shape = f"{layers} layers of {dim}, {str(fast_dtype(torch.device('cpu'))).removeprefix('torch.')}"
        measured.append(row(f"a step over {shape}", best["ours"] / best["torch"], "torch.optim.Muon", "<= 1"))
        measured.append(row(f"a step over {shape}", best["ours"] / best["products"], "its products alone", "<= 1.3"))
    return measured


if __name__ == "__main__":
    main(rows)
