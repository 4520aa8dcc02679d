"""The softmax in place and the log-sum-exp that is recovered from it, against torch's own."""

import pytest
import torch

from tiebeam.nn.logit_gradient import Objective, softmax_, to_gradient_
from tiebeam.nn.loss_options import Shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("vocab", [1, 2, 7, 8, 15, 16, 17, 31, 33, 100, 1023, 1024, 1025, 50257])
def test_the_kernel_may_write_over_its_input(vocab, dtype):
    z = 5 * torch.randn(9, vocab, dtype=dtype, generator=torch.Generator().manual_seed(vocab))
    target = torch.arange(9).remainder(vocab).unsqueeze(1)
    p = z.clone()
    log_sum = softmax_(p, target, z.gather(1, target).squeeze(1), lambda rows: z[rows])
    assert torch.equal(p, z.softmax(1))
    torch.testing.assert_close(log_sum, z.logsumexp(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [0.0, 20.0, 80.0, 87.0, 88.0, 100.0, 104.0, 700.0, 746.0, 1e4, 1e30])
def test_the_log_sum_is_exact_where_the_probability_of_the_target_underflows(gap, dtype):
    z = torch.randn(6, 50, dtype=dtype, generator=torch.Generator().manual_seed(0))
    target = torch.arange(6).unsqueeze(1)
    z[:3].scatter_add_(1, target[:3], torch.full((3, 1), -gap, dtype=dtype))
    losses = to_gradient_(p := z.clone(), target.squeeze(1), Objective(Shape(), None, True), lambda rows: z[rows])
    twin = z.double().requires_grad_()
    exact = torch.nn.functional.cross_entropy(twin, target.squeeze(1), reduction="none")
    exact.sum().backward()
    torch.testing.assert_close(losses.double(), exact.detach(), rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(p.double(), twin.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_logit_that_is_not_finite_gives_nan_in_its_row_alone(bad):
    z = torch.randn(3, 20)
    z[1, 4] = bad
    losses = to_gradient_(z, torch.tensor([0, 1, 2]), Objective(Shape(), None, True), lambda rows: z[rows])
    assert losses.isnan().tolist() == [False, True, False]
