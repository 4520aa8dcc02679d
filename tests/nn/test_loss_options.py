"""Softcaps of every size, class weights, scaling by probability, metrics: against the loss on float64 logits."""

import pytest
import torch

from helpers.plain_loss import both, draw_inputs, plain_loss, rel_error
from tiebeam.errors import BadRequest
from tiebeam.nn import TiedEmbedding, chunked_loss, tied_cross_entropy

CAPS = [1e-2, 0.1, 1.0, 15.0, 16.5, 30.0, 50.0, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8]


@pytest.mark.parametrize("kind", ["tanh", "sigmoid"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cap", CAPS)
def test_the_softcap_is_exact_at_every_cap(cap, dtype, kind):
    inputs = draw_inputs(20, (64,), 200, 32, dtype)
    got, exact = both(*inputs, softcap=cap, softcap_kind=kind, chunk=24)
    # Products of float32 numbers round z by about 1e-6; a cap below 1 divides that error by the cap. A CPU with bf16
    # instructions multiplies bfloat16 in bfloat16, which rounds the logits to 8 bits.
    rounded = chunked_loss.product_dtype(*inputs[:2]) == torch.bfloat16
    limit = 2e-6 * max(1.0, 1 / cap) if dtype == torch.float32 else 3e-2 if rounded else 1e-2
    assert rel_error(got[0], exact[0]) < (1e-3 if rounded else 1e-6)
    assert max(rel_error(g, e) for g, e in zip(got[1:], exact[1:], strict=True)) < limit


@pytest.mark.parametrize("kind", ["tanh", "sigmoid"])
def test_a_huge_cap_is_no_cap(kind):
    h, W, targets, _ = draw_inputs(20, (16,), 50, 8, torch.float32)
    capped = tied_cross_entropy(h, W, targets, softcap=1e30, softcap_kind=kind)
    torch.testing.assert_close(capped, tied_cross_entropy(h, W, targets), rtol=1e-6, atol=0)


def test_z_loss_sees_the_offset_of_a_sigmoid_softcap():
    h, W, targets, _ = draw_inputs(21, (16,), 50, 8)
    for cap in (8.0, 200.0):
        got, exact = both(h, W, targets, None, softcap=cap, softcap_kind="sigmoid", z_loss=1e-3)
        assert max(rel_error(g, e) for g, e in zip(got, exact, strict=True)) < 1e-12


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2, "z_loss": 0.1, "softcap": 5.0}], ids=["plain", "all"])
def test_class_weights_pass_gradcheck(reduction, options):
    h, W, targets, bias = draw_inputs(22, (6,), 7, 3, ignored=0.3, bias=True)
    weights = torch.tensor([0.0, 0.5, 1, 2, 3, -1, 0.1], dtype=torch.float64)

    def run(h, W, bias):
        return tied_cross_entropy(
            h, W, targets, bias=bias, class_weights=weights, reduction=reduction, chunk=4, **options
        )

    assert torch.autograd.gradcheck(run, [t.requires_grad_() for t in (h, W, bias)], nondet_tol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_class_weights_are_the_weight_of_cross_entropy(reduction):
    h, W, targets, _ = draw_inputs(23, (12,), 7, 3, ignored=0.3)
    weights = torch.rand(7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theirs = torch.nn.CrossEntropyLoss(weights, label_smoothing=0.1, reduction=reduction)(h @ W.T, targets)
    ours = tied_cross_entropy(h, W, targets, class_weights=weights, label_smoothing=0.1, reduction=reduction)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_targets_that_all_weigh_nothing_give_zero():
    h, W, _, _ = draw_inputs(24, (5,), 7, 3)
    W.requires_grad_()
    weights = torch.ones(7, dtype=torch.float64)
    weights[2] = 0
    loss = tied_cross_entropy(h, W, torch.full((5,), 2), class_weights=weights)
    loss.backward()
    assert loss.item() == 0
    assert not W.grad.any()


def test_the_probability_is_a_constant_factor():
    h, W, targets, _ = draw_inputs(25, (12,), 7, 3, ignored=0.3)
    got, exact = both(h, W, targets, None, scale_by_probability=True, chunk=5)
    assert max(rel_error(g, e) for g, e in zip(got, exact, strict=True)) < 1e-12
    rows = tied_cross_entropy(h, W, targets, reduction="none")
    scaled = tied_cross_entropy(h, W, targets, scale_by_probability=True, reduction="none")
    torch.testing.assert_close(scaled, rows * torch.exp(-rows))


def test_a_retained_graph_keeps_weights_and_scaling():
    h, W, targets, _ = draw_inputs(26, (12,), 7, 3)
    W.requires_grad_()
    weights = torch.arange(1.0, 8.0)
    loss = tied_cross_entropy(h, W, targets, class_weights=weights, scale_by_probability=True, z_loss=0.1)
    first = torch.autograd.grad(loss, W, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(loss, W)[0], first)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("softcap", [None, 0.5])
def test_metrics_come_with_the_loss(dtype, reduction, softcap):
    h, W, targets, _ = draw_inputs(27, (4, 12), 20, 8, dtype, ignored=0.3)
    logits = h.double() @ W.double().T
    targets[0, :6] = logits[0, :6].argmax(-1)
    options = {"softcap": softcap, "z_loss": 0.1, "reduction": reduction}
    W.requires_grad_()
    found = tied_cross_entropy(h, W, targets, return_metrics=True, chunk=7, **options)
    alone = tied_cross_entropy(h, W, targets, chunk=7, **options)
    counted = targets != -100
    predictions = torch.where(counted, logits.argmax(-1), -1)
    assert torch.equal(found.loss, alone)
    assert torch.equal(found.predictions, predictions)
    assert float(found.accuracy) == pytest.approx(float((predictions == targets).sum() / counted.sum()))
    without = plain_loss(h.double(), W.detach().double(), targets, **{**options, "z_loss": 0.0})
    close = 2e-2 if chunked_loss.product_dtype(h, W) == torch.bfloat16 else 1e-4  # `without` has exact logits
    torch.testing.assert_close(found.z_loss.double(), alone.detach().double() - without, rtol=close, atol=close)
    found.loss.sum().backward()
    assert W.grad.any()
    assert not found.z_loss.requires_grad


def test_metrics_without_rows_that_count():
    found = tied_cross_entropy(torch.ones(3, 2), torch.ones(5, 2), torch.full((3,), -100), return_metrics=True)
    assert found.loss == found.accuracy == found.z_loss == 0
    assert found.predictions.tolist() == [-1, -1, -1]


def test_a_tied_embedding_passes_the_options_on():
    table = TiedEmbedding(20, 8, softcap=3.0)
    h, targets = torch.randn(6, 8), torch.arange(6)
    found = table.loss(h, targets, return_metrics=True, class_weights=torch.ones(20))
    torch.testing.assert_close(found.loss, table.loss(h, targets))
    assert torch.equal(found.predictions, table.logits(h).argmax(-1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class_weights": torch.ones(8)}, r"class_weights are \[8\]"),
        ({"class_weights": torch.ones(9, dtype=torch.long)}, "int64"),
        ({"class_weights": torch.ones(9, requires_grad=True)}, r"class_weights\.detach"),
        ({"softcap": 1e31}, r"softcap=1e\+31"),
        ({"softcap": 0.0}, "softcap=0.0"),
        ({"softcap": float("nan")}, "softcap=nan"),
        ({"z_loss": float("inf")}, "z_loss=inf"),
    ],
)
def test_options_out_of_range_are_refused(change, message):
    with pytest.raises(BadRequest, match=message):
        tied_cross_entropy(torch.zeros(2, 3), torch.zeros(9, 3), torch.tensor([1, 2]), **change)
