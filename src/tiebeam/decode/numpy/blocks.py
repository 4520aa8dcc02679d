"""The blocks between the two ends, with their cache.

GPT-2 is still what one sees: x += attention(norm(x)); x += mlp(norm(x)). Around that stand the few things that
later families added, each a line that does nothing where the Spec did not ask for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tiebeam.decode.layer_names import Names
from tiebeam.decode.numpy import rope
from tiebeam.decode.numpy.load_weights import Linear, Weights
from tiebeam.decode.numpy.ops import ACTIVATIONS, Array, attention, causal_mask, layer_norm, rms_norm, rotate
from tiebeam.decode.spec import Layer, Spec


class Cache:
    """Keys and values of up to `capacity` positions, in buffers made once; and the rotary tables for them.

    Untouched buffer pages cost nothing, so asking for a long capacity is free until it is used.
    """

    def __init__(self, spec: Spec, capacity: int, dtype: np.dtype[np.floating]) -> None:
        shape = (len(spec.layers), spec.kv_heads, capacity, spec.head_dim)
        self.keys = np.empty(shape, dtype)  # [L, K, capacity, N]
        self.values = np.empty(shape, dtype)
        self.capacity, self.length = capacity, 0
        kinds = {layer.rope for layer in spec.layers if layer.rope is not None}
        self.rotary = {kind: rope.tables(kind, capacity, dtype) for kind in kinds}


@dataclass(frozen=True, slots=True)
class Norm:
    kind: str
    eps: float
    gain: Array | None = None  # [D]
    bias: Array | None = None

    def __call__(self, x: Array) -> Array:  # [T, D] -> [T, D]
        if self.kind == "rms":
            return rms_norm(x, self.gain, self.eps)
        assert self.gain is not None
        return layer_norm(x, self.gain, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class Block:
    spec: Spec
    layer: Layer
    attn_norm: Norm
    qkv: Linear  # [(H + 2K) * N, D]
    o: Linear  # [D, H * N]
    mlp_norm: Norm
    up: Linear  # [2M, D] when gated (gate, then up), else [M, D]
    down: Linear  # [D, M]
    q_norm: Array | None = None  # [N]
    k_norm: Array | None = None
    q_scale: float | Array = 1.0  # a number, or [H, 1]
    attn_post_norm: Norm | None = None
    mlp_post_norm: Norm | None = None
    attn_scale: Array | None = None  # [D], golf
    mlp_scale: Array | None = None
    resid_mix: Array | None = None  # [2, D], golf
    activation: Callable[[Array], Array] = field(default=ACTIVATIONS["silu"])

    def __call__(self, x: Array, i: int, cache: Cache, masks: dict[int | None, Array | None]) -> Array:  # [T, D]
        a = self.attend(self.attn_norm(x), i, cache, masks)  # [T, D]
        if self.attn_post_norm is not None:
            a = self.attn_post_norm(a)
        if self.attn_scale is not None:
            a *= self.attn_scale
        if self.spec.parallel:
            return x + a + self.feed(self.mlp_norm(x))
        x = x + a
        m = self.feed(self.mlp_norm(x))  # [T, D]
        if self.mlp_post_norm is not None:
            m = self.mlp_post_norm(m)
        if self.mlp_scale is not None:
            m *= self.mlp_scale
        return x + m

    def attend(self, x: Array, i: int, cache: Cache, masks: dict[int | None, Array | None]) -> Array:  # [T, D]
        T, H, K, N = len(x), self.spec.heads, self.spec.kv_heads, self.spec.head_dim
        start, end = cache.length, cache.length + T
        qkv = self.qkv(x).reshape(T, H + 2 * K, N)
        q, k, v = qkv[:, :H], qkv[:, H : H + K], qkv[:, H + K :]  # [T, H, N], [T, K, N], [T, K, N]
        if self.spec.qk_norm:
            q, k = rms_norm(q, self.q_norm, self.spec.eps), rms_norm(k, self.k_norm, self.spec.eps)
        if self.layer.rope is not None:
            cos, sin = cache.rotary[self.layer.rope]
            q, k = rotate(q, cos[start:end], sin[start:end]), rotate(k, cos[start:end], sin[start:end])
        keys, values = cache.keys[i], cache.values[i]  # [K, capacity, N]
        keys[:, start:end] = k.transpose(1, 0, 2)
        values[:, start:end] = v.transpose(1, 0, 2)
        window = self.layer.window
        begin = 0 if window is None else max(0, start + 1 - window)  # what the first of the new tokens sees
        if window not in masks:
            masks[window] = None if T == 1 else causal_mask(start, T, begin, window)
        mixed = attention(
            q * self.q_scale, keys[:, begin:end], values[:, begin:end], masks[window], self.spec.attention_cap
        )  # [T, H * N]
        return self.o(mixed)

    def feed(self, x: Array) -> Array:  # [T, D] -> [T, D]
        u = self.up(x)  # [T, M] or [T, 2M]
        if self.spec.gated:
            M = self.spec.mlp
            return self.down(self.activation(u[:, :M]) * u[:, M:])
        return self.down(self.activation(u))


def run(blocks: list[Block], skip_weights: Array | None, x: Array, cache: Cache) -> Array:  # [T, D] -> [T, D]
    """All blocks over T new positions, which join the cache."""
    masks: dict[int | None, Array | None] = {}
    if skip_weights is None:
        for i, block in enumerate(blocks):
            x = block(x, i, cache, masks)
    else:  # parameter-golf: the first half keeps its outputs, the second half adds them back in reverse
        first, half = x, len(blocks) // 2
        skips: list[Array] = []
        for i, block in enumerate(blocks):
            if i >= half and skips:
                x = x + skip_weights[i - half] * skips.pop()
            assert block.resid_mix is not None
            x = block(block.resid_mix[0] * x + block.resid_mix[1] * first, i, cache, masks)
            if i < half:
                skips.append(x)
    cache.length += len(x)
    return x


def load_norm(weights: Weights, spec: Spec, name: str) -> Norm:
    if spec.golf:
        return Norm("rms", spec.eps)
    gain = _gain(weights, spec, name, spec.dim)
    bias = weights.vector(name + ".bias", (spec.dim,)) if spec.norm == "layer" else None
    return Norm(spec.norm, spec.eps, gain, bias)


def _gain(weights: Weights, spec: Spec, name: str, width: int) -> Array:  # -> [width]
    gain = weights.vector(name + ".weight", (width,))
    stored_whole = weights.checkpoint.format == "gguf"  # the converter adds the offset
    return gain if stored_whole else gain + spec.norm_offset


def load_block(weights: Weights, spec: Spec, names: Names, i: int) -> Block:
    D, H, N, M = spec.dim, spec.heads, spec.head_dim, spec.mlp
    layer = spec.layers[i]

    def norm(role: str) -> Norm:
        return load_norm(weights, spec, names.of(role, i) if not spec.golf else "")

    def vector(role: str, shape: tuple[int, ...]) -> Array:
        return weights.vector(names.of(role, i), shape)

    q_scale: float | Array = layer.scale
    if spec.golf:
        q_scale = vector("q_gain", (H,))[:, None] * layer.scale
    per_head = spec.qk_norm and not spec.golf
    return Block(
        spec=spec,
        layer=layer,
        attn_norm=norm("attn_norm"),
        qkv=_load_qkv(weights, spec, names, i),
        o=weights.linear([names.of("o", i)], [(D, H * N)], spec.out_bias, names.transposed),
        mlp_norm=norm("mlp_norm"),
        up=_load_up(weights, spec, names, i),
        down=weights.linear([names.of("down", i)], [(D, M)], spec.mlp_bias, names.transposed),
        q_norm=_gain(weights, spec, names.of("q_norm", i), N) if per_head else None,
        k_norm=_gain(weights, spec, names.of("k_norm", i), N) if per_head else None,
        q_scale=q_scale,
        attn_post_norm=norm("attn_post_norm") if spec.post_norms else None,
        mlp_post_norm=norm("mlp_post_norm") if spec.post_norms else None,
        attn_scale=vector("attn_scale", (D,)) if spec.golf else None,
        mlp_scale=vector("mlp_scale", (D,)) if spec.golf else None,
        resid_mix=vector("resid_mix", (2, D)) if spec.golf else None,
        activation=ACTIVATIONS[spec.activation],
    )


def _load_qkv(weights: Weights, spec: Spec, names: Names, i: int) -> Linear:
    D, H, K, N = spec.dim, spec.heads, spec.kv_heads, spec.head_dim
    if "qkv" in names.roles:
        order = _heads_apart(H, N) if names.qkv_by_head else None
        shapes = [((H + 2 * K) * N, D)]
        return weights.linear([names.of("qkv", i)], shapes, spec.qkv_bias, names.transposed, [order])
    orders = [_halves(H, N), _halves(K, N), None] if names.paired_rotary else [None] * 3
    parts = [names.of(role, i) for role in "qkv"]
    return weights.linear(parts, [(H * N, D), (K * N, D), (K * N, D)], spec.qkv_bias, orders=orders)


def _load_up(weights: Weights, spec: Spec, names: Names, i: int) -> Linear:
    D, M = spec.dim, spec.mlp
    if "gate_up" in names.roles:
        return weights.linear([names.of("gate_up", i)], [(2 * M, D)], spec.mlp_bias)
    roles = ["gate", "up"] if spec.gated else ["up"]
    parts = [names.of(role, i) for role in roles]
    return weights.linear(parts, [(M, D)] * len(roles), spec.mlp_bias, names.transposed)


def _heads_apart(H: int, N: int) -> NDArray[np.intp]:
    """Rows (head, q|k|v, n) -> (q|k|v, head, n)."""
    return np.arange(H * 3 * N).reshape(H, 3, N).transpose(1, 0, 2).ravel()


def _halves(H: int, N: int) -> NDArray[np.intp]:
    """Rows of rotary neighbours (head, pair, 2) -> half against half (head, 2, pair)."""
    return np.arange(H * N).reshape(H, N // 2, 2).transpose(0, 2, 1).ravel()
