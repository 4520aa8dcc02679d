"""RMSNorm with few passes over the input on CPUs.

torch has no CPU kernel for RMSNorm: its forward is six passes over the input, autograd's backward a dozen, together a
tenth of a small model's step. Here the forward is three passes. LayerNorm has a fused backward: with a mean of 0 it is
RMSNorm's, except that it also subtracts the mean of the gradient, which is added again here.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tiebeam.nn.call_mode import in_functorch


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:  # [..., D], [D] -> [..., D]
    """`F.rms_norm` over the last dimension, up to rounding."""
    fused = (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and (weight is None or weight.dtype == x.dtype)
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not in_functorch()
    )
    if fused:
        return cast(Tensor, _RMSNorm.apply(x, weight, eps))  # type: ignore[no-untyped-call]
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        y, scale = scaled_rows(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again: by autograd's own formula
            wanted = [t for t, need in zip((x, weight), ctx.needs_input_grad[:2], strict=True) if need]
            y = F.rms_norm(x, (x.shape[-1],), weight, ctx.eps)
            found = iter(torch.autograd.grad(y, wanted, upstream, create_graph=True))
            return (*(next(found) if need else None for need in ctx.needs_input_grad[:2]), None)
        return (*rms_norm_gradients(upstream, x, weight, scale, *ctx.needs_input_grad[:2]), None)


def scaled_rows(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:  # [..., D], [D]
    """The forward pass without autograd: the result [..., D], and what each row was multiplied by [..., 1]."""
    scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    y = x * scale
    return y if weight is None else y.mul_(weight), scale


def rms_norm_gradients(
    upstream: Tensor, x: Tensor, weight: Tensor | None, scale: Tensor, wants_x: bool, wants_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients without autograd; `scale` is that of `scaled_rows`."""
    dim = x.shape[-1]
    gain = x.new_ones(dim) if weight is None else weight
    dx, dweight, _ = torch.ops.aten.native_layer_norm_backward(
        upstream, x, [dim], torch.zeros_like(scale), scale, gain, None, [wants_x, wants_weight, False]
    )
    if wants_x:
        dx += (upstream @ gain).unsqueeze(-1).mul_(scale).div_(dim)
    return dx if wants_x else None, dweight if wants_weight else None
