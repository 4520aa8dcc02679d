"""Causal attention with grouped keys and rotary positions, for both architectures."""

from __future__ import annotations

import mlx.core as mx


def split_heads(x: mx.array, heads: int) -> mx.array:  # [B, T, H * d] -> [B, H, T, d]
    return x.reshape(*x.shape[:-1], heads, -1).swapaxes(1, 2)


def rotate(x: mx.array, theta: float, sign: int = 1) -> mx.array:  # [B, H, T, d] -> [B, H, T, d]
    """Rotate the first half of each head against the second, by +angle or -angle."""
    return mx.fast.rope(x, x.shape[-1], traditional=False, base=theta, scale=float(sign), offset=0)


def attend(q: mx.array, k: mx.array, v: mx.array) -> mx.array:  # [B, H, T, d], [B, K, T, d] x 2 -> [B, T, H * d]
    y = mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask="causal")
    return y.swapaxes(1, 2).flatten(2)
