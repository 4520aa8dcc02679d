"""Coupled Adam, against the update written out token by token; and in a run that is interrupted and resumed."""

import math

import torch

from tiebeam.nn import GPT, GPTConfig
from tiebeam.train.coupled_adam import CoupledAdam
from tiebeam.train.optimizers import make_optimizers

V, D = 7, 3


def by_hand(weights, gradients, lr, beta1, beta2, eps):
    """Adam with every number in a Python list; the second moment of a column is the mean over the tokens."""
    w = [[float(x) for x in row] for row in weights]
    m = [[0.0] * D for _ in range(V)]
    v = [[0.0] * D for _ in range(V)]
    for t, gradient in enumerate(gradients, start=1):
        for i in range(V):
            for d in range(D):
                g = float(gradient[i, d])
                m[i][d] = beta1 * m[i][d] + (1 - beta1) * g
                v[i][d] = beta2 * v[i][d] + (1 - beta2) * g * g
        for d in range(D):
            mean = sum(v[i][d] for i in range(V)) / V / (1 - beta2**t)
            for i in range(V):
                w[i][d] -= lr * m[i][d] / (1 - beta1**t) / (math.sqrt(mean) + eps)
    return torch.tensor(w, dtype=torch.float64)


def test_the_update_is_the_one_written_out_token_by_token():
    torch.manual_seed(0)
    W = torch.nn.Parameter(torch.randn(V, D, dtype=torch.float64))
    # Frequent tokens have large gradients: with equal ones, coupling would change nothing.
    gradients = [torch.randn(V, D, dtype=torch.float64) * torch.logspace(-3, 1, V)[:, None] for _ in range(5)]
    expected = by_hand(W.detach(), gradients, 0.1, 0.9, 0.95, 1e-8)
    optimizer = CoupledAdam([W], lr=0.1)
    for gradient in gradients:
        W.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(W.detach(), expected)


def test_it_is_adam_where_all_rows_have_one_gradient():
    start, gradient = torch.randn(1, D).repeat(V, 1), torch.randn(1, D).repeat(V, 1)
    one, other = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    for parameter, kind in ((one, CoupledAdam), (other, torch.optim.Adam)):
        optimizer = kind([parameter], lr=0.1, betas=(0.9, 0.95))
        for _ in range(3):
            parameter.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(one, other)


def test_a_rare_token_moves_less_than_a_frequent_one():
    W = torch.nn.Parameter(torch.zeros(2, D))
    optimizer = CoupledAdam([W], lr=0.1)
    W.grad = torch.tensor([[1.0] * D, [0.01] * D])
    optimizer.step()
    torch.testing.assert_close(W[1], W[0] / 100)


def test_embedding_and_head_are_coupled_and_nothing_else():
    for tie, count in ((True, 1), (False, 2)):
        model = GPT(GPTConfig(vocab=32, dim=16, layers=1, heads=2, tie=tie, bigram_rows=8))
        parts = list(make_optimizers(model.roles(), coupled=True))
        assert [type(part).__name__ for part in parts] == ["CoupledAdam", "Adam", "Muon"]
        held = [parameter for group in parts[0].param_groups for parameter in group["params"]]
        assert len(held) == count
        assert held[0] is model.table.weight
        together = sum(p.numel() for part in parts for group in part.param_groups for p in group["params"])
        assert together == model.size
