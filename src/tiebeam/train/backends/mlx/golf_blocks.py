"""parameter-golf's block on MLX; tiebeam.nn.golf_blocks documents what is special about it."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from tiebeam.nn.gpt_config import GPTConfig
from tiebeam.train.backends.mlx.attention import attend, rotate, split_heads


def norm(x: mx.array, eps: float) -> mx.array:
    return mx.fast.rms_norm(x, None, eps)


class Attention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.eps, self.theta = config.norm_eps, config.rope_theta
        dim, kv_dim = config.dim, config.kv_heads * config.head_dim
        self.c_q = nn.Linear(dim, dim, bias=False)
        self.c_k = nn.Linear(dim, kv_dim, bias=False)
        self.c_v = nn.Linear(dim, kv_dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.q_gain = mx.ones((config.heads,))

    def __call__(self, x: mx.array) -> mx.array:  # [B, T, D] -> [B, T, D]
        q = norm(split_heads(self.c_q(x), self.heads), self.eps)
        k = norm(split_heads(self.c_k(x), self.kv_heads), self.eps)
        v = split_heads(self.c_v(x), self.kv_heads)
        q = rotate(q, self.theta, -1) * self.q_gain[:, None, None]
        return self.proj(attend(q, rotate(k, self.theta, -1), v))


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(config.dim, config.mlp_dim, bias=False)
        self.proj = nn.Linear(config.mlp_dim, config.dim, bias=False)

    def __call__(self, x: mx.array) -> mx.array:  # [B, T, D] -> [B, T, D]
        return self.proj(mx.maximum(self.fc(x), 0.0).square())


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.attn = Attention(config)
        self.mlp = MLP(config)
        self.attn_scale = mx.ones((config.dim,))
        self.mlp_scale = mx.ones((config.dim,))
        self.resid_mix = mx.zeros((2, config.dim))

    def __call__(self, x: mx.array, x0: mx.array) -> mx.array:  # [B, T, D] x 2 -> [B, T, D]
        x = self.resid_mix[0] * x + self.resid_mix[1] * x0
        x = x + self.attn_scale * self.attn(norm(x, self.eps))
        return x + self.mlp_scale * self.mlp(norm(x, self.eps))


def layers(  # [B, T, D] -> [B, T, D], normed
    x: mx.array, blocks: list[Block], skip_weights: mx.array, eps: float
) -> mx.array:
    x = x0 = norm(x, eps)
    skips: list[mx.array] = []
    first_half = len(blocks) // 2
    for i, block in enumerate(blocks):
        if i >= first_half and skips:
            x = x + skip_weights[i - first_half] * skips.pop()
        x = block(x, x0)
        if i < first_half:
            skips.append(x)
    return norm(x, eps)
