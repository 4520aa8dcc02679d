"""RMSNorm: the numbers and gradients of F.rms_norm, in every mode that calls it."""

import pytest
import torch
import torch.nn.functional as F

from tiebeam.nn.rms_norm import rms_norm

EPS = 1e-6


def draw(*shape, dtype=torch.float64, seed=0):
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (3 * x + 1).to(dtype).requires_grad_()


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(5,), (3, 1), (2, 3, 8), (2, 3, 4, 64), (0, 4)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_value_and_gradients_are_those_of_float64_autograd(shape, weighted, dtype, tolerance):
    x, weight = draw(*shape, dtype=dtype), draw(shape[-1], dtype=dtype, seed=1) if weighted else None
    upstream = draw(*shape, dtype=dtype, seed=2).detach()
    leaves = [x, weight] if weighted else [x]
    y = rms_norm(x, weight, EPS)
    torch.testing.assert_close(y, F.rms_norm(x, shape[-1:], weight, EPS), rtol=tolerance, atol=tolerance)
    found = torch.autograd.grad(y, leaves, upstream)
    true = [t.detach().double().requires_grad_() for t in leaves]
    exact_y = F.rms_norm(true[0], shape[-1:], true[1] if weighted else None, EPS)
    exact = torch.autograd.grad(exact_y, true, upstream.double())
    # The gradient of x is a difference of terms: it is as exact as they are, not as itself (it is almost 0 at D = 1).
    terms = upstream.double() * (true[1] if weighted else 1.0) / (true[0].square().mean(-1, keepdim=True) + EPS).sqrt()
    for got, want in zip(found, exact, strict=True):
        assert got.dtype == dtype
        scale = max([1.0, *(float(t.abs().max()) for t in (want, terms) if t.numel())])
        torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("weighted", [True, False])
def test_first_and_second_derivatives_pass_gradcheck(weighted):
    x, weight = draw(3, 6), draw(6, seed=1)
    leaves = (x, weight) if weighted else (x,)

    def run(x, weight=None):
        return rms_norm(x, weight, EPS)

    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves)


def test_rows_of_zeros_and_transposed_inputs():
    x = draw(2, 5, 3, 4).detach()
    x[0, 0] = 0
    x = x.transpose(1, 2).requires_grad_()
    weight = draw(4, seed=1)
    upstream = draw(2, 3, 5, 4, seed=2).detach()
    found = torch.autograd.grad(rms_norm(x, weight, EPS), (x, weight), upstream)
    exact = torch.autograd.grad(F.rms_norm(x, (4,), weight, EPS), (x, weight), upstream)
    for got, want in zip(found, exact, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("frozen", ["x", "weight"])
def test_only_what_needs_a_gradient_gets_one(frozen):
    x, weight = draw(3, 6), draw(6, seed=1)
    (x if frozen == "x" else weight).requires_grad_(False)
    rms_norm(x, weight, EPS).sum().backward()
    assert (x.grad is None) == (frozen == "x")
    assert (weight.grad is None) == (frozen == "weight")


def test_half_precision_func_and_compile_take_torchs_own():
    x, weight = draw(3, 6, dtype=torch.bfloat16), draw(6, dtype=torch.bfloat16, seed=1)
    assert torch.equal(rms_norm(x, weight, EPS), F.rms_norm(x, (6,), weight, EPS))
    x, weight = draw(3, 6).detach(), draw(6, seed=1).detach()
    found = torch.func.grad(lambda x: rms_norm(x, weight, EPS).square().sum())(x)
    torch.testing.assert_close(found, torch.func.grad(lambda x: F.rms_norm(x, (6,), weight, EPS).square().sum())(x))
    compiled = torch.compile(lambda x: rms_norm(x, weight, EPS), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), F.rms_norm(x, (6,), weight, EPS))
