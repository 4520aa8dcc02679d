"""Rotary positions and causal attention with grouped keys, for both architectures.

Heads stay in the layout of the projections, [B, T, H, d], until the attention itself: norms on a transposed view take
almost twice as long on CPUs.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tiebeam.nn.call_mode import in_functorch

Rotary = tuple[Tensor, Tensor]  # cos and sin, [T, head_dim / 2] each


def rotary(length: int, head_dim: int, theta: float, like: Tensor) -> Rotary:
    """Computed in each forward pass: it is cheap, and a cache would not survive `to_empty`."""
    wide = torch.promote_types(like.dtype, torch.float32)
    step = torch.arange(0, head_dim, 2, dtype=wide, device=like.device) / head_dim
    angle = torch.outer(torch.arange(length, dtype=wide, device=like.device), theta**-step)
    return angle.cos(), angle.sin()


def split_heads(x: Tensor, heads: int) -> Tensor:  # [B, T, H * d] -> [B, T, H, d]
    return x.view(*x.shape[:-1], heads, -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # [B, T, H, d], [T, d / 2] x 2 -> [B, T, H, d]
    """Rotate the first half of each head against the second, by +angle."""
    cos, sin = cos.to(x.dtype).unsqueeze(-2), sin.to(x.dtype).unsqueeze(-2)  # [T, 1, d / 2]
    if x.device.type == "cpu" and not torch.compiler.is_compiling() and not in_functorch():
        return cast(Tensor, _Rotate.apply(x, cos, sin))  # type: ignore[no-untyped-call]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class _Rotate(torch.autograd.Function):
    """The rotation in two passes over the memory; autograd would take seven, and ten for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return rotated(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            return rotate(upstream, cos.squeeze(-2), -sin.squeeze(-2)), None, None
        return rotated(upstream, cos, sin, -1), None, None  # a rotation by -angle


def rotated(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:  # [B, T, H, d], [T, 1, d / 2] x 2
    """The rotation by +angle or, as its gradient is, by -angle; without autograd."""
    y = torch.empty_like(x)
    (first, second), (left, right) = x.chunk(2, dim=-1), y.chunk(2, dim=-1)
    torch.mul(first, cos, out=left).addcmul_(second, sin, value=-sign)
    torch.mul(second, cos, out=right).addcmul_(first, sin, value=sign)
    return y


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # [B, T, H, d], [B, T, K, d] x 2 -> [B, T, H * d]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return y.transpose(1, 2).flatten(2)
