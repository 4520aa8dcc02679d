"""Rotary positions and causal attention with grouped keys, for both architectures."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

Rotary = tuple[Tensor, Tensor]  # cos and sin, [T, head_dim / 2] each


def rotary(length: int, head_dim: int, theta: float, like: Tensor) -> Rotary:
    """Computed in each forward pass: it is cheap, and a cache would not survive `to_empty`."""
    wide = torch.promote_types(like.dtype, torch.float32)
    step = torch.arange(0, head_dim, 2, dtype=wide, device=like.device) / head_dim
    angle = torch.outer(torch.arange(length, dtype=wide, device=like.device), theta**-step)
    return angle.cos(), angle.sin()


def split_heads(x: Tensor, heads: int) -> Tensor:  # [B, T, H * d] -> [B, H, T, d]
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # [B, H, T, d], [T, d / 2] x 2 -> [B, H, T, d]
    """Rotate the first half of each head against the second, by +angle."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # [B, H, T, d], [B, K, T, d] x 2 -> [B, T, H * d]
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return y.transpose(1, 2).flatten(2)
