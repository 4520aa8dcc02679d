"""Muon against a plain reference implementation and against torch's Muon."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tiebeam.train.muon import COEFFICIENTS, Muon, fast_dtype, orthogonalize


def slow_step(weights, buffers, gradients, lr, momentum, nesterov, decay, steps) -> None:
    """One matrix at a time, as the method is written down."""
    a, b, c = COEFFICIENTS
    for i, gradient in enumerate(gradients):
        buffers[i] = momentum * buffers[i] + (1 - momentum) * gradient
        X = (1 - momentum) * gradient + momentum * buffers[i] if nesterov else buffers[i]
        X = X / max(X.norm(), 1e-7)
        for _ in range(steps):
            X = a * X + b * (X @ X.T @ X) + c * (X @ X.T @ X @ X.T @ X)
        rows, columns = X.shape
        weights[i] = weights[i] * (1 - lr * decay) - lr * max(1, rows / columns) ** 0.5 * X


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 0.85, 0.95]),
    st.integers(0, 2**31),
)
def test_steps_match_the_definition_in_float64(shapes, nesterov, decay, momentum, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    shapes = [*shapes, shapes[0], shapes[0][::-1]]  # a twin and a transpose, which go through as one stack
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    buffers = [torch.zeros_like(weight) for weight in weights]
    muon = Muon(parameters, lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=decay, dtype=torch.float64)
    for _ in range(3):
        gradients = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        muon.step()
        slow_step(weights, buffers, gradients, 0.1, momentum, nesterov, decay, 5)
    for parameter, weight in zip(parameters, weights, strict=True):
        torch.testing.assert_close(parameter.detach(), weight, rtol=1e-9, atol=1e-9)


def test_steps_match_torch_muon_in_bfloat16() -> None:
    torch.manual_seed(0)
    shapes = [(64, 64), (32, 64), (128, 64), (64, 128)] * 2
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    muon = Muon(ours, lr=0.1, momentum=0.9, dtype=torch.bfloat16)
    peer = torch.optim.Muon(theirs, lr=0.1, momentum=0.9, weight_decay=0.0)
    for _ in range(3):
        for mine, its in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            its.grad = mine.grad.clone()
        muon.step()
        peer.step()
    for mine, its in zip(ours, theirs, strict=True):
        moved = (its - mine).norm() / (3 * 0.1 * min(mine.shape) ** 0.5)
        assert moved < 0.02  # two orders of bfloat16 rounding
        torch.testing.assert_close(muon.state[mine]["momentum_buffer"], peer.state[its]["momentum_buffer"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_is_nearly_orthogonal(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(3, 48, 96).to(dtype)).float())
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_a_tall_matrix_gives_the_transpose_of_what_a_wide_one_gives() -> None:
    torch.manual_seed(0)
    wide = torch.randn(2, 8, 24, dtype=torch.float64)
    torch.testing.assert_close(orthogonalize(wide.mT.clone()), orthogonalize(wide.clone()).mT)


def test_a_zero_gradient_changes_nothing_and_a_missing_one_is_skipped() -> None:
    still, absent = nn.Parameter(torch.ones(3, 5)), nn.Parameter(torch.ones(3, 5))
    still.grad = torch.zeros(3, 5)
    muon = Muon([still, absent], lr=1.0)
    muon.step()
    assert torch.equal(still, torch.ones(3, 5))
    assert torch.equal(absent, torch.ones(3, 5))
    assert absent not in muon.state


def test_the_scale_of_gradients_does_not_matter() -> None:
    torch.manual_seed(0)
    small, large = nn.Parameter(torch.zeros(4, 8)), nn.Parameter(torch.zeros(4, 8))
    small.grad = torch.randn(4, 8) * 1e-5
    large.grad = small.grad * 1e9
    Muon([small, large], lr=1.0, dtype=torch.float32).step()
    torch.testing.assert_close(small, large, rtol=1e-3, atol=1e-4)


def test_only_matrices_are_accepted() -> None:
    with pytest.raises(AssertionError, match=r"Muon takes matrices, not a parameter of shape \[3\]"):
        Muon([nn.Parameter(torch.ones(3))])


def test_the_dtype_is_part_of_the_state() -> None:
    other = torch.float64
    muon = Muon([nn.Parameter(torch.ones(2, 2))], dtype=other)
    again = Muon([nn.Parameter(torch.ones(2, 2))])
    assert again.param_groups[0]["dtype"] == fast_dtype(torch.device("cpu"))
    again.load_state_dict(muon.state_dict())
    assert again.param_groups[0]["dtype"] == other


def test_fast_dtype_is_bfloat16_where_the_device_supports_it(monkeypatch) -> None:
    assert fast_dtype(torch.device("cuda")) == torch.bfloat16
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    assert fast_dtype(torch.device("cpu")) == torch.float32
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    assert fast_dtype(torch.device("cpu")) == torch.bfloat16


def test_a_closure_is_run_with_gradients() -> None:
    weight = nn.Parameter(torch.eye(3))

    def closure() -> float:
        loss = weight.square().sum()
        loss.backward()
        return loss.item()

    assert Muon([weight], lr=0.1).step(closure) == 3.0
    assert not torch.equal(weight, torch.eye(3))
