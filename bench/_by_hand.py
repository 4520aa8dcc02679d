"""A training step of the standard architecture written by hand: each kernel of torch once, without autograd.

What limits a step that is not compiled. The layers are those of `tiebeam.nn.GPT`, forward and backward, with what a
step keeps between them; the head is the products and the softmax of bench/loss.py, so the gradient that enters the last
layer is not that of a loss.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from harness import Side
from loss import chunked_products
from torch import Tensor

from tiebeam.nn import GPT
from tiebeam.nn.attention import rotary, rotated
from tiebeam.nn.rms_norm import rms_norm_gradients, scaled_rows

aten: Any = torch.ops.aten


def norm(x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:  # [..., D], [D] -> [..., D], [..., 1]
    return scaled_rows(x, gain, 1e-6)


def norm_backward(gradient: Tensor, x: Tensor, scale: Tensor, gain: Tensor) -> Tensor:
    dx, _ = rms_norm_gradients(gradient, x, gain, scale, True, True)
    assert dx is not None
    return dx


class Layer:
    """One layer: `forward` keeps in `kept` what `backward` needs."""

    def __init__(self, layer: Any, heads: int, kv_heads: int, batch: int, cos: Tensor, sin: Tensor) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        linears = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
                   mlp.gate_proj, mlp.up_proj, mlp.down_proj)  # fmt: skip
        self.q, self.k, self.v, self.o, self.gate, self.up, self.down = (linear.weight.detach() for linear in linears)
        self.gain, self.head_gain = torch.ones(self.q.shape[1]), torch.ones(self.q.shape[0] // heads)
        self.heads, self.kv_heads, self.batch, self.cos, self.sin = heads, kv_heads, batch, cos, sin
        self.kept: tuple[Tensor, ...] = ()

    def split(self, x: Tensor, heads: int) -> Tensor:  # [B * T, H * d] -> [B, T, H, d]
        return x.view(self.batch, -1, heads, x.shape[1] // heads)

    def of_groups(self, d: Tensor) -> Tensor:  # [B, H, T, d] -> [B, T, K, d]
        d = d.transpose(1, 2)
        return d if self.heads == self.kv_heads else d.unflatten(2, (self.kv_heads, -1)).sum(3)

    def forward(self, x: Tensor) -> Tensor:  # [B * T, D] -> [B * T, D]
        n, s = norm(x, self.gain)
        q, k = self.split(n @ self.q.t(), self.heads), self.split(n @ self.k.t(), self.kv_heads)
        v = self.split(n @ self.v.t(), self.kv_heads)
        (q_normed, qs), (k_normed, ks) = norm(q, self.head_gain), norm(k, self.head_gain)
        groups = self.heads // self.kv_heads
        turned = [rotated(q_normed, self.cos, self.sin, 1).transpose(1, 2)]
        turned += [t.transpose(1, 2).repeat_interleave(groups, 1) if groups > 1 else t.transpose(1, 2)
                   for t in (rotated(k_normed, self.cos, self.sin, 1), v)]  # fmt: skip
        y, sums = aten._scaled_dot_product_flash_attention_for_cpu(*turned, 0.0, True)
        mixed = y.transpose(1, 2).reshape(len(x), -1)
        middle = x + mixed @ self.o.t()
        n2, s2 = norm(middle, self.gain)
        gate, up = n2 @ self.gate.t(), n2 @ self.up.t()
        active = F.silu(gate)
        product = active * up
        self.kept = (x, n, s, q, qs, k, ks, *turned, y, sums, mixed, middle, n2, s2, gate, up, active, product)
        return middle + product @ self.down.t()

    def backward(self, dx: Tensor) -> Tensor:  # [B * T, D] -> [B * T, D]
        x, n, s, q, qs, k, ks, qr, kr, vr, y, sums, mixed, middle, n2, s2, gate, up, active, product = self.kept
        self.kept = ()
        dx.t() @ product
        dproduct = dx @ self.down
        dup, dgate = dproduct * active, aten.silu_backward(dproduct * up, gate)
        dup.t() @ n2, dgate.t() @ n2
        dx = dx + norm_backward((dgate @ self.gate).addmm_(dup, self.up), middle, s2, self.gain)
        dx.t() @ mixed
        dy = self.split(dx @ self.o, self.heads).transpose(1, 2)
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(dy, qr, kr, vr, y, sums, 0.0, True)
        dq, dk, dv = dq.transpose(1, 2), self.of_groups(dk), self.of_groups(dv).reshape(len(x), -1)
        dq = norm_backward(rotated(dq, self.cos, self.sin, -1), q, qs, self.head_gain).view(len(x), -1)
        dk = norm_backward(rotated(dk, self.cos, self.sin, -1), k, ks, self.head_gain).view(len(x), -1)
        dq.t() @ n, dk.t() @ n, dv.t() @ n
        dn = (dq @ self.q).addmm_(dk, self.k).addmm_(dv, self.v)
        return dx + norm_backward(dn, x, s, self.gain)


def step(model: GPT, optimizer: torch.optim.Optimizer, ids: Tensor) -> Side:
    """The hand-written step of `model` on `ids` [B, T], with an optimizer of as many parameters."""
    config, flat = model.config, ids.flatten()
    table = model.table.weight.detach()
    cos, sin = (t.unsqueeze(-2) for t in rotary(ids.shape[1], config.head_dim, config.rope_theta, table))
    layers = [Layer(layer, config.heads, config.kv_heads, len(ids), cos, sin) for layer in model.model.layers]
    head = chunked_products(torch.randn(len(flat), config.dim), table)
    rows, gradient, gain = torch.zeros_like(table), torch.randn(len(flat), config.dim), torch.ones(config.dim)

    @torch.no_grad()
    def run() -> None:
        x = table[flat]
        for layer in layers:
            x = layer.forward(x)
        _, scale = norm(x, gain)
        head()
        dx = norm_backward(gradient, x, scale, gain)
        for layer in reversed(layers):
            dx = layer.backward(dx)
        rows.index_add_(0, flat, dx)
        optimizer.step()

    return run
