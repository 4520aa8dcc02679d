"""The Qwen3 layers, with Hugging Face's tensor names, so that every loader can open what is saved from here."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebeam.nn.attention import Rotary, attend, rotate, split_heads
from tiebeam.nn.gpt_config import GPTConfig
from tiebeam.nn.rms_norm import rms_norm
from tiebeam.nn.tied_embedding import TiedEmbedding

_STD = 0.02


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        q_dim, kv_dim = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.dim, q_dim, bias=False)
        self.k_proj = nn.Linear(config.dim, kv_dim, bias=False)
        self.v_proj = nn.Linear(config.dim, kv_dim, bias=False)
        self.o_proj = nn.Linear(q_dim, config.dim, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps)

    def forward(self, x: Tensor, position: Rotary) -> Tensor:  # [B, T, D] -> [B, T, D]
        q = rotate(self.q_norm(split_heads(self.q_proj(x), self.heads)), *position)
        k = rotate(self.k_norm(split_heads(self.k_proj(x), self.kv_heads)), *position)
        y: Tensor = self.o_proj(attend(q, k, split_heads(self.v_proj(x), self.kv_heads)))
        return y


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.mlp_dim, bias=False)
        self.up_proj = nn.Linear(config.dim, config.mlp_dim, bias=False)
        self.down_proj = nn.Linear(config.mlp_dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class Layer(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.dim, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor, position: Rotary) -> Tensor:  # [B, T, D] -> [B, T, D]
        x = x + self.self_attn(self.input_layernorm(x), position)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class Layers(nn.Module):
    """`model.*` of a Qwen3 checkpoint; it holds the table because its tensor name is model.embed_tokens."""

    def __init__(self, config: GPTConfig, table: TiedEmbedding) -> None:
        super().__init__()
        self.embed_tokens = table
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)

    def reset_parameters(self) -> None:
        deep = _STD / (2 * len(self.layers)) ** 0.5  # the residual stream sums 2 L branches
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=deep if name.endswith(("o_proj", "down_proj")) else _STD)
            elif isinstance(module, RMSNorm):
                nn.init.ones_(module.weight)

    def forward(self, x: Tensor, position: Rotary) -> Tensor:  # [B, T, D] -> [B, T, D], normed
        for layer in self.layers:
            x = layer(x, position)
        y: Tensor = self.norm(x)
        return y
