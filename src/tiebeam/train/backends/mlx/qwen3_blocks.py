"""The Qwen3 layers on MLX, with Hugging Face's tensor names, as in tiebeam.nn.qwen3_blocks."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from tiebeam.nn.gpt_config import GPTConfig
from tiebeam.train.backends.mlx.attention import attend, rotate, split_heads
from tiebeam.train.backends.mlx.tied_embedding import Table


class Attention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.theta = config.heads, config.kv_heads, config.rope_theta
        q_dim, kv_dim = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.dim, q_dim, bias=False)
        self.k_proj = nn.Linear(config.dim, kv_dim, bias=False)
        self.v_proj = nn.Linear(config.dim, kv_dim, bias=False)
        self.o_proj = nn.Linear(q_dim, config.dim, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, config.norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, config.norm_eps)

    def __call__(self, x: mx.array) -> mx.array:  # [B, T, D] -> [B, T, D]
        q = rotate(self.q_norm(split_heads(self.q_proj(x), self.heads)), self.theta)
        k = rotate(self.k_norm(split_heads(self.k_proj(x), self.kv_heads)), self.theta)
        return self.o_proj(attend(q, k, split_heads(self.v_proj(x), self.kv_heads)))


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.mlp_dim, bias=False)
        self.up_proj = nn.Linear(config.dim, config.mlp_dim, bias=False)
        self.down_proj = nn.Linear(config.mlp_dim, config.dim, bias=False)

    def __call__(self, x: mx.array) -> mx.array:  # [B, T, D] -> [B, T, D]
        gate = self.gate_proj(x)
        return self.down_proj(gate * mx.sigmoid(gate) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.dim, config.norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, config.norm_eps)

    def __call__(self, x: mx.array) -> mx.array:  # [B, T, D] -> [B, T, D]
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Layers(nn.Module):
    """`model.*` of a Qwen3 checkpoint; it holds the table because its tensor name is model.embed_tokens."""

    def __init__(self, config: GPTConfig, table: Table) -> None:
        super().__init__()
        self.embed_tokens = table
        self.layers = [Layer(config) for _ in range(config.layers)]
        self.norm = nn.RMSNorm(config.dim, config.norm_eps)

    def __call__(self, x: mx.array) -> mx.array:  # [B, T, D] -> [B, T, D], normed
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)
