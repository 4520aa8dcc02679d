"""tied_cross_entropy against the loss with full logits, in float64 and by autograd."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.plain_loss import both, draw_inputs, peak_bytes, plain_loss, rel_error
from tiebeam.errors import BadRequest
from tiebeam.nn import chunked_loss, tied_cross_entropy

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 3e-2}


@given(
    seed=st.integers(0, 2**31),
    rows=st.one_of(st.tuples(st.integers(0, 17)), st.tuples(st.integers(1, 4), st.integers(1, 5))),
    vocab=st.integers(1, 40),
    dim=st.integers(1, 9),
    chunk=st.one_of(st.none(), st.integers(1, 20)),
    dtype=st.sampled_from([torch.float64, torch.float64, torch.float32, torch.bfloat16]),
    softcap=st.one_of(st.none(), st.floats(0.5, 30.0), st.floats(30.0, 1e4)),
    softcap_kind=st.sampled_from(["tanh", "sigmoid"]),
    z_loss=st.sampled_from([0.0, 1e-4, 0.1]),
    label_smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    ignored=st.sampled_from([0.0, 0.3, 1.0]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    bias=st.booleans(),
    weighted=st.booleans(),
    scaled=st.booleans(),
)
@settings(deadline=None, max_examples=250)
def test_loss_and_gradients_match_float64_autograd(
    seed, rows, vocab, dim, chunk, dtype, softcap, softcap_kind, z_loss, label_smoothing, ignored, reduction, bias,
    weighted, scaled,
):  # fmt: skip
    h, W, targets, b = draw_inputs(seed, rows, vocab, dim, dtype, ignored, bias)
    weights = torch.rand(vocab, generator=torch.Generator().manual_seed(seed)) + 0.1 if weighted else None
    got, exact = both(
        h, W, targets, b, upstream_seed=seed, chunk=chunk, softcap=softcap, softcap_kind=softcap_kind, z_loss=z_loss,
        label_smoothing=label_smoothing, reduction=reduction, class_weights=weights, scale_by_probability=scaled,
    )  # fmt: skip
    # Losses and gradients of one call share a scale: a sum that cancels is as exact as its terms, not as itself.
    scale = max(1.0, *(float(e.abs().max()) for e in exact if e.numel()))
    for mine, true in zip(got, exact, strict=True):
        if mine.numel():
            assert float((mine.double() - true).abs().max()) <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("softcap", "kind"), [(None, "tanh"), (4.0, "tanh"), (8.0, "sigmoid")])
def test_gradcheck(reduction, softcap, kind):
    h, W, targets, bias = draw_inputs(1, (6,), 7, 3, ignored=0.3, bias=True)
    leaves = [t.requires_grad_() for t in (h, W, bias)]

    def run(h, W, bias):
        return tied_cross_entropy(
            h, W, targets, bias=bias, softcap=softcap, softcap_kind=kind, z_loss=0.01, label_smoothing=0.1,
            reduction=reduction, chunk=2,
        )  # fmt: skip

    assert torch.autograd.gradcheck(run, leaves, nondet_tol=1e-12)


@pytest.mark.parametrize("monkey_block", [3, 8192])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_tables_of_several_blocks_and_chunks(dtype, monkey_block, monkeypatch):
    monkeypatch.setattr(chunked_loss, "_BLOCK_ROWS", monkey_block)
    inputs = draw_inputs(2, (24,), 50, 16, dtype, ignored=0.2)
    got, exact = both(*inputs, chunk=5, softcap=10.0)
    assert got[0].dtype == torch.float32
    assert got[1].dtype == got[2].dtype == dtype
    assert max(rel_error(g, e) for g, e in zip(got, exact, strict=True)) < 3e-2


@pytest.mark.parametrize("fast", [True, False])
def test_bf16_is_correct_with_and_without_bf16_hardware(fast, monkeypatch):
    monkeypatch.setattr(chunked_loss, "_cpu_has_bf16", lambda: fast)
    h, W, *_ = inputs = draw_inputs(3, (24,), 50, 16, torch.bfloat16)
    assert chunked_loss.product_dtype(h, W) == (torch.bfloat16 if fast else torch.float32)
    got, exact = both(*inputs, chunk=5)
    assert max(rel_error(g, e) for g, e in zip(got, exact, strict=True)) < 3e-2


def test_autocast_without_bf16_hardware_computes_in_float32(monkeypatch):
    monkeypatch.setattr(chunked_loss, "_cpu_has_bf16", lambda: False)
    inputs = draw_inputs(4, (24,), 50, 16, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got, exact = both(*inputs, chunk=7)
        half = [t if t is None or not t.is_floating_point() else t.bfloat16() for t in inputs]
        half_got, half_exact = both(*half, chunk=7)
    assert max(rel_error(g, e) for g, e in zip(got, exact, strict=True)) < 1e-5
    assert rel_error(half_got[0], half_exact[0]) < 1e-5  # bf16 inputs, but products and loss in float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_float32_gradients_for_a_float32_table(dtype):
    inputs = draw_inputs(4, (24,), 50, 16, torch.float32)
    with torch.autocast("cpu", dtype):
        got, exact = both(*inputs, chunk=7)
    assert [g.dtype for g in got] == [torch.float32] * 3
    assert max(rel_error(g, e) for g, e in zip(got, exact, strict=True)) < 3e-2


def test_autocast_takes_a_half_precision_h_with_a_float32_table():
    h, W, targets, _ = draw_inputs(4, (24,), 50, 16, torch.float32)
    h = h.bfloat16().requires_grad_()
    W.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = tied_cross_entropy(h, W, targets)
    loss.backward()
    assert h.grad.dtype == torch.bfloat16
    assert W.grad.dtype == torch.float32


def test_tiny_fp16_gradients_survive_until_the_loss_scaler_scales_them():
    h, W, targets, _ = draw_inputs(5, (16,), 20, 4, torch.float16)
    h, W = (h * 1e-3).requires_grad_(), (W * 1e-3).requires_grad_()
    scale = 2.0**20
    (tied_cross_entropy(h, W, targets) * scale).backward()
    true = [t.detach().double().requires_grad_() for t in (h, W)]
    (plain_loss(true[0], true[1], targets) * scale).backward()
    assert rel_error(h.grad, true[0].grad) < 1e-2
    assert rel_error(W.grad, true[1].grad) < 1e-2


def test_no_grad_gives_the_loss_and_no_graph():
    h, W, targets, _ = draw_inputs(6, (9,), 11, 4)
    W.requires_grad_()
    with torch.no_grad():
        loss = tied_cross_entropy(h, W, targets, chunk=2)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, plain_loss(h, W.detach(), targets))


def test_no_grad_holds_no_table_sized_gradient():
    h, W, targets, _ = draw_inputs(6, (64,), 4000, 64, torch.float32)
    W.requires_grad_()
    with torch.no_grad():
        peak = peak_bytes(lambda: tied_cross_entropy(h, W, targets, chunk=4))
    assert peak < W.numel() * 4 / 2


def test_only_requested_gradients_are_computed():
    h, W, targets, _ = draw_inputs(7, (64,), 4000, 64, torch.float32)
    h.requires_grad_()
    assert peak_bytes(lambda: tied_cross_entropy(h, W, targets, chunk=4).backward()) < W.numel() * 4 / 2
    true = h.detach().double().requires_grad_()
    plain_loss(true, W.double(), targets).backward()
    assert rel_error(h.grad, true.grad) < 1e-5


@pytest.mark.parametrize("targets", [torch.empty(0, dtype=torch.long), torch.full((5,), -100)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_all_targets_ignored_gives_zero_loss_and_zero_gradients(targets, reduction):
    h = torch.randn(len(targets), 3, requires_grad=True)
    W = torch.randn(7, 3, requires_grad=True)
    loss = tied_cross_entropy(h, W, targets, reduction=reduction)
    loss.backward()
    assert loss.item() == 0
    assert not h.grad.any()
    assert not W.grad.any()


def test_nan_in_an_ignored_row_does_not_spread():
    h, W, targets, _ = draw_inputs(8, (6,), 7, 3)
    h[2], targets[2] = float("nan"), -100
    h.requires_grad_()
    W.requires_grad_()
    tied_cross_entropy(h, W, targets).backward()
    assert W.grad.isfinite().all()
    assert h.grad.isfinite().all()


def test_an_ignore_index_inside_the_vocabulary():
    h, W, targets, _ = draw_inputs(9, (12,), 4, 3)
    got, exact = both(h, W, targets, None, ignore_index=2, chunk=5)
    assert max(rel_error(g, e) for g, e in zip(got, exact, strict=True)) < 1e-12


def test_non_contiguous_inputs():
    h, W, targets, _ = draw_inputs(10, (4, 6), 9, 5)
    sparse = torch.stack([h, h], -1)[..., 0].transpose(0, 1)
    table = W.t().contiguous().t()
    aims = targets.t()
    assert not sparse.is_contiguous()
    assert not table.is_contiguous()
    got, exact = both(sparse, table, aims, None, chunk=5)
    assert max(rel_error(g, e) for g, e in zip(got, exact, strict=True)) < 1e-12


def test_int32_targets():
    h, W, targets, _ = draw_inputs(10, (6,), 9, 5)
    torch.testing.assert_close(tied_cross_entropy(h, W, targets.int()), plain_loss(h, W, targets))


def test_one_table_in_two_losses_gets_the_sum():
    h, W, targets, _ = draw_inputs(11, (6,), 9, 5)
    mine, true = W.clone().requires_grad_(), W.clone().requires_grad_()
    (tied_cross_entropy(h, mine, targets) + 3 * tied_cross_entropy(h * 2, mine, targets, softcap=5.0)).backward()
    (plain_loss(h, true, targets) + 3 * plain_loss(h * 2, true, targets, softcap=5.0)).backward()
    torch.testing.assert_close(mine.grad, true.grad)


def test_gradient_accumulation_over_micro_batches():
    h, W, targets, _ = draw_inputs(12, (8,), 9, 5)
    mine, true = W.clone().requires_grad_(), W.clone().requires_grad_()
    for part in (slice(0, 4), slice(4, 8)):
        (tied_cross_entropy(h[part], mine, targets[part]) / 2).backward()
    plain_loss(h, true, targets).backward()
    torch.testing.assert_close(mine.grad, true.grad)


def test_a_retained_graph_gives_the_same_gradients_again():
    h, W, targets, _ = draw_inputs(13, (8,), 9, 5)
    h.requires_grad_()
    W.requires_grad_()
    loss = tied_cross_entropy(h, W, targets, chunk=3)
    first = torch.autograd.grad(loss, (h, W), retain_graph=True)
    second = torch.autograd.grad(loss, (h, W))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, (h, W))


def test_a_second_backward_after_the_table_changed_is_refused():
    h, W, targets, _ = draw_inputs(13, (8,), 9, 5)
    W.requires_grad_()
    loss = tied_cross_entropy(h, W, targets)
    loss.backward(retain_graph=True)
    with torch.no_grad():
        W.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_second_derivatives_are_refused():
    h, W, targets, _ = draw_inputs(14, (8,), 9, 5)
    W.requires_grad_()
    with pytest.raises(BadRequest, match="second derivatives"):
        torch.autograd.grad(tied_cross_entropy(h, W, targets), W, create_graph=True)


def test_torch_func_is_refused_with_a_fix():
    h, W, targets, _ = draw_inputs(14, (8,), 9, 5)
    with pytest.raises(BadRequest, match=r"torch\.func.*use F\.cross_entropy"):
        torch.func.grad(lambda W: tied_cross_entropy(h, W, targets))(W)


def test_forward_mode_is_refused():
    h, W, targets, _ = draw_inputs(14, (8,), 9, 5)
    import torch.autograd.forward_ad as fwd

    with fwd.dual_level(), pytest.raises((RuntimeError, NotImplementedError)):
        tied_cross_entropy(fwd.make_dual(h, torch.ones_like(h)), W, targets)


def test_a_dtensor_table_is_refused_with_a_fix():
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor

    h, W, targets, _ = draw_inputs(14, (8,), 9, 5)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        sharded = distribute_tensor(W, mesh, [Shard(0)])
        with pytest.raises(BadRequest, match="full_tensor"):
            tied_cross_entropy(h, sharded, targets)
        torch.testing.assert_close(tied_cross_entropy(h, sharded.full_tensor(), targets), plain_loss(h, W, targets))
    finally:
        dist.destroy_process_group()


def test_the_meta_device_gives_shapes():
    h, W = torch.empty(2, 3, 4, device="meta"), torch.empty(9, 4, device="meta", requires_grad=True)
    targets = torch.empty(2, 3, device="meta", dtype=torch.long)
    assert tied_cross_entropy(h, W, targets).shape == ()
    assert tied_cross_entropy(h, W, targets, reduction="none").shape == (2, 3)


def test_a_compiled_caller_gets_the_same_loss():
    h, W, targets, _ = draw_inputs(15, (8,), 9, 5)
    compiled = torch.compile(lambda h, W: tied_cross_entropy(h * 2, W, targets) + 1, backend="eager")
    torch.testing.assert_close(compiled(h, W), plain_loss(h * 2, W, targets) + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reduction": "avg"}, "'avg'"),
        ({"softcap": -1.0}, "softcap=-1.0"),
        ({"softcap_kind": "relu"}, "'relu'"),
        ({"label_smoothing": 1.5}, "label_smoothing=1.5"),
        ({"chunk": 0}, "chunk=0"),
        ({"bias": torch.zeros(3)}, "bias is"),
        ({"h": torch.zeros(2, 4)}, r"h is \[2, 4\]"),
        ({"targets": torch.zeros(3, dtype=torch.long)}, r"targets are \[3\]"),
        ({"targets": torch.zeros(2)}, "token ids"),
        ({"targets": torch.tensor([0, 9])}, "target 9 is out of range"),
        ({"targets": torch.tensor([-5, 0])}, "target -5 is out of range"),
        ({"W": torch.zeros(9, 3, dtype=torch.long)}, "floating point"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    arguments = {"h": torch.zeros(2, 3), "W": torch.zeros(9, 3), "targets": torch.tensor([1, 2])} | change
    with pytest.raises(BadRequest, match=message):
        tied_cross_entropy(**arguments)


def test_extreme_logits_stay_finite():
    W = torch.eye(5).requires_grad_()
    h = torch.tensor([[1e4, 0, 0, 0, 0], [-1e4, 0, 0, 0, 0]], requires_grad=True)
    loss = tied_cross_entropy(h, W, torch.tensor([0, 0]), reduction="none")
    loss.sum().backward()
    torch.testing.assert_close(
        loss.detach(), F.cross_entropy(h.detach() @ W.detach().T, torch.tensor([0, 0]), reduction="none")
    )
    assert h.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"softcap": 500.0}, {"return_metrics": True}])
def test_a_target_whose_probability_underflows_has_the_loss_of_its_logits(dtype, options):
    torch.manual_seed(0)
    h, W, bias = torch.randn(40, 8).to(dtype), torch.randn(50, 8).to(dtype), torch.randn(50)
    targets = torch.arange(40)
    h[3], W[3], h[37], W[37] = 6.0, -6.0, 6.0, -6.0  # -288 at these targets, near 0 elsewhere
    found = tied_cross_entropy(h, W, targets, bias=bias, reduction="none", chunk=16, **options)
    logits = h.double() @ W.double().T + bias.double()
    if "softcap" in options:
        logits = 500.0 * torch.tanh(logits / 500.0)
    expected = F.cross_entropy(logits, targets, reduction="none")
    assert expected[3] > 200
    assert expected[37] > 200
    losses = found.loss if options.get("return_metrics") else found
    torch.testing.assert_close(losses.double(), expected, rtol=2e-5 if dtype == torch.float32 else 2e-2, atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 511, 512, 513, 4096, 100_000])
@pytest.mark.parametrize(("vocab", "dim"), [(1024, 512), (50257, 768), (128256, 2048), (262144, 5376)])
def test_default_chunks_are_equal_and_bounded(tokens, vocab, dim):
    chunk = chunked_loss.default_chunk(tokens, vocab, dim)
    pieces = -(-tokens // chunk)
    assert 1 <= chunk <= 1024 or 4 * chunk * vocab <= 16 << 20
    assert pieces * chunk - tokens < pieces  # no piece is shorter than another by more than the rounding
    if vocab * dim * 4 >= 1e9:
        assert chunk <= max(256, 0.15 * dim)


def test_memory_is_one_chunk_of_logits_beyond_the_gradients():
    V, D, N, chunk = 20_000, 64, 256, 16
    h, W, targets, _ = draw_inputs(16, (N,), V, D, torch.float32)
    h.requires_grad_()
    W.requires_grad_()

    def step():
        h.grad = W.grad = None
        tied_cross_entropy(h, W, targets, chunk=chunk).backward()

    step()
    h.grad = W.grad = None
    outputs = 4 * (V * D + N * D)
    assert peak_bytes(step) <= outputs + 4 * chunk * V + 300_000
