"""The slow, obvious twins: the loss with all its logits, and what the allocator saw."""

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
    aims = targets.reshape(-1).long()
    counts = aims != ignore_index
    losses = F.cross_entropy(z, aims, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none")
    losses = losses + torch.where(counts, z_loss * torch.logsumexp(z, -1).square(), 0.0)
    if reduction == "none":
        return losses.reshape(targets.shape)
    return losses.sum() / counts.sum().clamp_min(1) if reduction == "mean" else losses.sum()


def peak_bytes(run: Callable[[], object]) -> int:
    """The most that `run` held at once beyond what was held before, by the allocator's own records."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def rel_error(got: Tensor, exact: Tensor) -> float:
    """The largest deviation, in units of the largest true value (at least 1e-3, so that zeros compare)."""
    if got.numel() == 0:
        return 0.0
    return float((got.double() - exact.double()).abs().max() / exact.double().abs().max().clamp_min(1e-3))
