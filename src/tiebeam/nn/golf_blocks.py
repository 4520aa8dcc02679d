"""parameter-golf's baseline block: norms without weights, residual stream mixed with the embedding, relu squared.

Every block mixes its input with x0, the normed embedding. The first half of the blocks save their outputs as skip
connections, which the second half adds in reverse order. Queries and keys are normed per head and rotated, and the
queries are multiplied by a learned gain per head. The rotation is by -angle, unlike Hugging Face's: with given weights
that is a different function, so the sign is part of the format.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tiebeam.nn.attention import Rotary, attend, rotate, split_heads
from tiebeam.nn.gpt_config import GPTConfig
from tiebeam.nn.rms_norm import rms_norm

Q_GAIN = 1.5


def norm(x: Tensor, eps: float) -> Tensor:
    return rms_norm(x, None, eps)


def skip_count(layers: int) -> int:
    return layers // 2


class Attention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.eps = config.heads, config.kv_heads, config.norm_eps
        dim, kv_dim = config.dim, config.kv_heads * config.head_dim
        self.c_q = nn.Linear(dim, dim, bias=False)
        self.c_k = nn.Linear(dim, kv_dim, bias=False)
        self.c_v = nn.Linear(dim, kv_dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.q_gain = nn.Parameter(torch.empty(config.heads))

    def forward(self, x: Tensor, position: Rotary) -> Tensor:  # [B, T, D] -> [B, T, D]
        cos, sin = position
        q = norm(split_heads(self.c_q(x), self.heads), self.eps)
        k = norm(split_heads(self.c_k(x), self.kv_heads), self.eps)
        v = split_heads(self.c_v(x), self.kv_heads)
        q = rotate(q, cos, -sin) * self.q_gain.to(q.dtype)[:, None]
        y: Tensor = self.proj(attend(q, rotate(k, cos, -sin), v))
        return y


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(config.dim, config.mlp_dim, bias=False)
        self.proj = nn.Linear(config.mlp_dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        y: Tensor = self.proj(torch.relu(self.fc(x)).square())
        return y


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.attn = Attention(config)
        self.mlp = MLP(config)
        self.attn_scale = nn.Parameter(torch.empty(config.dim))
        self.mlp_scale = nn.Parameter(torch.empty(config.dim))
        self.resid_mix = nn.Parameter(torch.empty(2, config.dim))

    def reset_parameters(self) -> None:
        for linear in (self.attn.c_q, self.attn.c_k, self.attn.c_v, self.mlp.fc):
            linear.reset_parameters()
        for zeroed in (self.attn.proj, self.mlp.proj):
            nn.init.zeros_(zeroed.weight)
        nn.init.constant_(self.attn.q_gain, Q_GAIN)
        nn.init.ones_(self.attn_scale)
        nn.init.ones_(self.mlp_scale)
        with torch.no_grad():
            self.resid_mix[0].fill_(1.0)
            self.resid_mix[1].zero_()

    def forward(self, x: Tensor, x0: Tensor, position: Rotary) -> Tensor:  # [B, T, D] x 2 -> [B, T, D]
        mix = self.resid_mix.to(x.dtype)
        x = mix[0] * x + mix[1] * x0
        x = x + self.attn_scale.to(x.dtype) * self.attn(norm(x, self.eps), position)
        y: Tensor = x + self.mlp_scale.to(x.dtype) * self.mlp(norm(x, self.eps))
        return y


def layers(  # [B, T, D] -> [B, T, D], normed
    x: Tensor, blocks: nn.ModuleList, skip_weights: Tensor, position: Rotary, eps: float
) -> Tensor:
    x = x0 = norm(x, eps)
    skips: list[Tensor] = []
    first_half = len(blocks) // 2
    for i, block in enumerate(blocks):
        if i >= first_half and skips:
            x = x + skip_weights[i - first_half].to(x.dtype) * skips.pop()
        x = block(x, x0, position)
        if i < first_half:
            skips.append(x)
    return norm(x, eps)
