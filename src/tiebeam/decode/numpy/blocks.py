"""The layers of the decoder, with their KV cache.

GPT-2 remains visible: x += attention(norm(x)); x += mlp(norm(x)). What later families added is a line each, which
does nothing where the Spec does not ask for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiebeam.decode.numpy import rope
from tiebeam.decode.numpy.load_weights import Linear, Weights
from tiebeam.decode.numpy.mlp import MixtureOfExperts, Mlp, load_mlp
from tiebeam.decode.numpy.ops import Array, attention, layer_norm, rms_norm, rotate
from tiebeam.families.family import TensorNames
from tiebeam.families.spec import Layer, Spec


class Cache:
    """Keys and values of up to `capacity` positions, in buffers allocated once; and the rotary tables for them.

    Untouched buffer pages cost nothing, so a large capacity is free until it is used.
    """

    def __init__(self, spec: Spec, capacity: int, dtype: np.dtype[np.floating]) -> None:
        shape = (len(spec.layers), spec.kv_heads, capacity, spec.head_dim)
        self.keys = np.empty(shape, dtype)  # [L, K, capacity, N]
        self.values = np.empty(shape, dtype)
        self.capacity, self.length = capacity, 0
        self.last_token: int | None = None
        """The token at the last position, for a bigram table."""
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
    qkv: Linear  # [(H + 2K) * N, D]
    o: Linear  # [D, H * N]
    mlp: Mlp | MixtureOfExperts
    attn_norm: Norm | None = None
    mlp_norm: Norm | None = None
    attn_post_norm: Norm | None = None
    mlp_post_norm: Norm | None = None
    q_norm: Array | None = None  # [N], or [H * N] for a norm of the whole projection
    k_norm: Array | None = None
    q_scale: float | Array = 1.0  # a number, or [H, 1]
    attn_scale: Array | None = None  # [D], golf
    mlp_scale: Array | None = None
    resid_mix: Array | None = None  # [2, D], golf

    def __call__(self, x: Array, i: int, cache: Cache) -> Array:  # [T, D]
        a = self.attend(x if self.attn_norm is None else self.attn_norm(x), i, cache)  # [T, D]
        if self.spec.parallel:
            return x + self._scaled(a, self.attn_post_norm, self.attn_scale) + self._mlp(x)
        x = x + self._scaled(a, self.attn_post_norm, self.attn_scale)
        return x + self._mlp(x)

    def _mlp(self, x: Array) -> Array:  # [T, D] -> [T, D]
        y = self.mlp(x if self.mlp_norm is None else self.mlp_norm(x))
        return self._scaled(y, self.mlp_post_norm, self.mlp_scale)

    def _scaled(self, y: Array, post_norm: Norm | None, scale: Array | None) -> Array:  # [T, D] -> [T, D]
        """What a sublayer adds to the residual stream."""
        if post_norm is not None:
            y = post_norm(y)
        if scale is not None:
            y *= scale
        if self.spec.residual_scale != 1.0:
            y *= self.spec.residual_scale
        return y

    def attend(self, x: Array, i: int, cache: Cache) -> Array:  # [T, D]
        T, H, K, N = len(x), self.spec.heads, self.spec.kv_heads, self.spec.head_dim
        start, end = cache.length, cache.length + T
        qkv = self.qkv(x)  # [T, (H + 2K) * N]
        q, k, v = qkv[:, : H * N], qkv[:, H * N : (H + K) * N], qkv[:, (H + K) * N :]
        if self.spec.qk_norm == "projection":
            q, k = rms_norm(q, self.q_norm, self.spec.eps), rms_norm(k, self.k_norm, self.spec.eps)
        q, k, v = q.reshape(T, H, N), k.reshape(T, K, N), v.reshape(T, K, N)
        if self.spec.qk_norm == "head":
            q, k = rms_norm(q, self.q_norm, self.spec.eps), rms_norm(k, self.k_norm, self.spec.eps)
        if self.layer.rope is not None:
            cos, sin = cache.rotary[self.layer.rope]
            q, k = rotate(q, cos[start:end], sin[start:end]), rotate(k, cos[start:end], sin[start:end])
        keys, values = cache.keys[i], cache.values[i]  # [K, capacity, N]
        keys[:, start:end] = k.transpose(1, 0, 2)
        values[:, start:end] = v.transpose(1, 0, 2)
        mixed = attention(
            q * self.q_scale, keys[:, :end], values[:, :end], self.layer.window, self.spec.attention_cap
        )  # [T, H * N]
        return self.o(mixed)


def run(
    blocks: list[Block], skip_weights: Array | None, x: Array, cache: Cache, states: list[Array] | None = None
) -> Array:  # [T, D] -> [T, D]
    """All blocks over T new positions, which are added to the cache. `states` gets the residual stream at the last
    position: before the first block, and after each one."""

    def note(x: Array) -> None:
        if states is not None:
            states.append(x[-1].copy())

    note(x)
    if skip_weights is None:
        for i, block in enumerate(blocks):
            x = block(x, i, cache)
            note(x)
    else:  # parameter-golf: the second half adds the outputs of the first half, in reverse order
        first, half = x, len(blocks) // 2
        skips: list[Array] = []
        for i, block in enumerate(blocks):
            if i >= half and skips:
                x = x + skip_weights[i - half] * skips.pop()
            assert block.resid_mix is not None
            x = block(block.resid_mix[0] * x + block.resid_mix[1] * first, i, cache)
            if i < half:
                skips.append(x)
            note(x)
    cache.length += len(x)
    return x


def load_norm(weights: Weights, spec: Spec, names: TensorNames, name: str) -> Norm:
    if spec.golf:
        return Norm("rms", spec.eps)
    gain = _gain(weights, names, name, spec.dim)
    bias = weights.vector(name + ".bias", (spec.dim,)) if spec.norm_bias else None
    return Norm(spec.norm, spec.eps, gain, bias)


def _gain(weights: Weights, names: TensorNames, name: str, width: int) -> Array:  # -> [width]
    return weights.vector(name + ".weight", (width,)) + names.norm_offset


def load_block(weights: Weights, spec: Spec, names: TensorNames, i: int) -> Block:
    D, H, K, N = spec.dim, spec.heads, spec.kv_heads, spec.head_dim
    layer = spec.layers[i]

    def norm(role: str, wanted: bool) -> Norm | None:
        return load_norm(weights, spec, names, "" if spec.golf else names.of(role, i)) if wanted else None

    def gain(role: str, heads: int) -> Array | None:
        if spec.qk_norm is None or spec.golf:
            return None
        return _gain(weights, names, names.of(role, i), N if spec.qk_norm == "head" else heads * N)

    def golf_vector(role: str, *shape: int) -> Array | None:
        return weights.vector(names.of(role, i), shape) if spec.golf else None

    q_gain = golf_vector("q_gain", H)
    return Block(
        spec=spec,
        layer=layer,
        qkv=_load_qkv(weights, spec, names, i),
        o=weights.linear([names.of("o", i)], [(D, H * N)], spec.out_bias, names.transposed),
        mlp=load_mlp(weights, spec, names, i),
        attn_norm=norm("attn_norm", spec.pre_norms),
        mlp_norm=norm("attn_norm" if spec.one_norm else "mlp_norm", spec.pre_norms),
        attn_post_norm=norm("attn_post_norm", spec.post_norms),
        mlp_post_norm=norm("mlp_post_norm", spec.post_norms),
        q_norm=gain("q_norm", H),
        k_norm=gain("k_norm", K),
        q_scale=layer.scale if q_gain is None else q_gain[:, None] * layer.scale,
        attn_scale=golf_vector("attn_scale", D),
        mlp_scale=golf_vector("mlp_scale", D),
        resid_mix=golf_vector("resid_mix", 2, D),
    )


def _load_qkv(weights: Weights, spec: Spec, names: TensorNames, i: int) -> Linear:
    D, H, K, N = spec.dim, spec.heads, spec.kv_heads, spec.head_dim
    if "qkv" in names.roles:
        order = (lambda: _by_kind(H, N)) if names.qkv_by_head else None
        shapes = [((H + 2 * K) * N, D)]
        return weights.linear([names.of("qkv", i)], shapes, spec.qkv_bias, names.transposed, [order])
    orders = [lambda: _halves(H, N), lambda: _halves(K, N), None] if names.paired_rotary else [None] * 3
    parts = [names.of(role, i) for role in "qkv"]
    return weights.linear(parts, [(H * N, D), (K * N, D), (K * N, D)], spec.qkv_bias, make_orders=orders)


def _by_kind(H: int, N: int) -> NDArray[np.intp]:
    """Order of rows (head, q|k|v, n) -> (q|k|v, head, n)."""
    return np.arange(H * 3 * N).reshape(H, 3, N).transpose(1, 0, 2).ravel()


def _halves(H: int, N: int) -> NDArray[np.intp]:
    """Order of rows (head, pair, 2) -> (head, 2, pair): rotary pairs half a head apart."""
    return np.arange(H * N).reshape(H, N // 2, 2).transpose(0, 2, 1).ravel()
