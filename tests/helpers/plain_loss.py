"""Slow reference implementations: the loss with full logits, inputs for it, and peak memory by the allocator."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tiebeam.nn import tied_cross_entropy


def plain_loss(
    h, W, targets, *, bias=None, softcap=None, softcap_kind="tanh", z_loss=0.0, label_smoothing=0.0,
    ignore_index=-100, reduction="mean", class_weights=None, scale_by_probability=False,
) -> Tensor:  # fmt: skip
    """The loss of F.cross_entropy on full logits. Where no row counts, the mean is 0 and not NaN."""
    z = F.linear(h, W, bias).reshape(-1, W.shape[0])
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap) if softcap_kind == "tanh" else softcap * torch.sigmoid(4 * z / softcap)
    ids = targets.reshape(-1).long()
    counts = ids != ignore_index
    weights = None if class_weights is None else class_weights.to(z.dtype)
    losses = F.cross_entropy(
        z, ids, weights, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none"
    )
    z_losses = torch.where(counts, z_loss * torch.logsumexp(z, -1).square(), 0.0)
    if scale_by_probability:
        probability = z.detach().softmax(-1).gather(1, torch.where(counts, ids, 0).unsqueeze(1)).squeeze(1)
        losses, z_losses = losses * probability, z_losses * probability
    if reduction == "none":
        return (losses + z_losses).reshape(targets.shape)
    if reduction == "sum":
        return (losses + z_losses).sum()
    rows = counts.sum().clamp_min(1)
    weight = rows if weights is None else weights[ids[counts]].sum()
    return losses.sum() / (weight if bool(weight) else 1) + z_losses.sum() / rows


def peak_bytes(run: Callable[[], object]) -> int:
    """Peak memory of `run` beyond what was allocated before, from the profiler's memory events."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def rel_error(got: Tensor, exact: Tensor) -> float:
    """The largest deviation relative to the largest exact value (at least 1e-3, so that zeros compare)."""
    if got.numel() == 0:
        return 0.0
    return float((got.double() - exact.double()).abs().max() / exact.double().abs().max().clamp_min(1e-3))


def draw_inputs(seed, rows, vocab, dim, dtype=torch.float64, ignored=0.0, bias=False):
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(*rows, dim, generator=generator, dtype=torch.float64)
    W = torch.randn(vocab, dim, generator=generator, dtype=torch.float64)
    targets = torch.randint(vocab, rows, generator=generator)
    targets[torch.rand(rows, generator=generator) < ignored] = -100
    b = torch.randn(vocab, generator=generator, dtype=torch.float64).to(dtype) if bias else None
    return h.to(dtype), W.to(dtype), targets, b


def both(h, W, targets, bias, *, upstream_seed=0, chunk=None, **options):
    """Loss and gradients of ours on the inputs as they are, and of the plain one on the same numbers in float64."""
    ours = [None if t is None else t.detach().clone().requires_grad_() for t in (h, W, bias)]
    true = [None if t is None else t.detach().to(torch.float64, copy=True).requires_grad_() for t in (h, W, bias)]
    got = tied_cross_entropy(ours[0], ours[1], targets, bias=ours[2], chunk=chunk, **options)
    exact = plain_loss(true[0], true[1], targets, bias=true[2], **options)
    upstream = torch.randn(exact.shape, generator=torch.Generator().manual_seed(upstream_seed), dtype=torch.float64)
    got.backward(upstream.to(got.dtype))
    exact.backward(upstream.to(got.dtype).double())
    return (
        [got.detach(), *(t.grad for t in ours if t is not None)],
        [exact.detach(), *(t.grad for t in true if t is not None)],
    )
