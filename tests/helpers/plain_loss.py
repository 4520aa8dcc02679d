"""Slow reference implementations: the loss with full logits, and peak memory by the allocator."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def plain_loss(
    h, W, targets, *, bias=None, softcap=None, softcap_kind="tanh", z_loss=0.0, label_smoothing=0.0,
    ignore_index=-100, reduction="mean",
) -> Tensor:  # fmt: skip
    z = F.linear(h, W, bias).reshape(-1, W.shape[0])
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap) if softcap_kind == "tanh" else softcap * torch.sigmoid(4 * z / softcap)
    ids = targets.reshape(-1).long()
    counts = ids != ignore_index
    losses = F.cross_entropy(z, ids, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none")
    losses = losses + torch.where(counts, z_loss * torch.logsumexp(z, -1).square(), 0.0)
    if reduction == "none":
        return losses.reshape(targets.shape)
    return losses.sum() / counts.sum().clamp_min(1) if reduction == "mean" else losses.sum()


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
