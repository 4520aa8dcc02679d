"""The arithmetic of a decoder as small functions with their shapes.

T tokens, D width, H heads, K key/value heads, G = H / K query heads per key/value head, N head dimension, S cached
positions. Everything stays in the dtype of the weights: NumPy keeps float32 unless a float64 *array or NumPy scalar*
is involved (`np.sqrt(64)` is such a scalar; `math.sqrt(64)` is not), so constants here are Python floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_QUERIES, _FEWEST = 128, 16  # attention's queries at a time: few, so that their scores stay in the cache
_SCORES = 1 << 24  # attention's scores at a time, over all heads
_CACHED = 1 << 16  # numbers that several passes find in the cache

Array: TypeAlias = NDArray[Any]
"""Floating point, one dtype within a decoder: float32, or float64 when requested."""

Ids: TypeAlias = NDArray[np.int64]


def row_blocks(x: Array) -> Iterator[slice]:  # [T, D]
    """Rows to work on at a time: several passes over them are faster while they stay in the cache."""
    step = max(1, _CACHED // x.shape[-1])
    for top in range(0, len(x), step):
        yield slice(top, top + step)


def all_finite(x: Array) -> bool:
    """The sum of squares is finite only if all numbers are; it may overflow, and then they are looked at one by one."""
    row = x.reshape(-1)
    with np.errstate(all="ignore"):
        return math.isfinite(float(row @ row)) or bool(np.isfinite(x).all())


def rms_norm(x: Array, gain: Array | None, eps: float) -> Array:  # [..., D], [D] -> [..., D]
    if x.size == x.shape[-1]:  # one token: a Python float instead of five operations on arrays of one number
        row = x.reshape(-1)
        y: Array = x / math.sqrt(max(float(row @ row) / len(row) + eps, 0.0))
    else:
        mean_square = np.add.reduce(x * x, axis=-1, keepdims=True) / x.shape[-1]  # [..., 1]
        y = x / np.sqrt(mean_square + eps)
    if gain is not None:
        y *= gain
    return y


def layer_norm(x: Array, gain: Array, bias: Array | None, eps: float) -> Array:  # [T, D], [D], [D] -> [T, D]
    out = np.empty_like(x)
    for rows in row_blocks(x):
        part = x[rows] - np.add.reduce(x[rows], axis=-1, keepdims=True) / x.shape[-1]
        y = rms_norm(part, gain, eps)
        if bias is not None:
            y += bias
        out[rows] = y
    return out


def softmax(x: Array) -> Array:
    """Over the last axis, in place: attention scores are the largest array of a long prompt."""
    x -= np.maximum.reduce(x, axis=-1, keepdims=True)
    np.exp(x, out=x)
    x /= np.add.reduce(x, axis=-1, keepdims=True)
    return x


def log_softmax(x: Array) -> Array:
    """Over the last axis; the sum is in float64."""
    x = x - np.maximum.reduce(x, axis=-1, keepdims=True)
    total = np.add.reduce(np.exp(x), axis=-1, keepdims=True, dtype=np.float64)
    return x - np.log(total)


def softcap(x: Array, cap: float) -> Array:
    """cap * tanh(x / cap), in place."""
    x /= cap
    np.tanh(x, out=x)
    x *= cap
    return x


def silu(x: Array) -> Array:
    return x / (1.0 + np.exp(-x))  # exp(-x) may overflow to inf, and x / inf is the right 0


def gelu_tanh(x: Array) -> Array:
    """GPT-2's and Gemma's GELU, 0.5 x (1 + tanh(a (x + b x^3))), as x / (1 + exp(-2 a (x + b x^3)))."""
    u = x * x
    u *= -2.0 * math.sqrt(2.0 / math.pi) * 0.044715
    u -= 2.0 * math.sqrt(2.0 / math.pi)
    u *= x
    np.exp(u, out=u)  # may overflow to inf, and x / inf is the right 0
    u += 1.0
    np.divide(x, u, out=u)
    return u


def gelu_erf(x: Array) -> Array:
    return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))


def relu_squared(x: Array) -> Array:
    x = np.maximum(x, 0.0)
    return x * x


def erf(x: Array) -> Array:
    """NumPy has none. float32: Abramowitz and Stegun 7.1.26, within 5e-7. float64: math.erf, one by one."""
    if x.dtype == np.float64:
        return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)
    z = np.abs(x)
    t = 1.0 / (1.0 + 0.3275911 * z)
    poly = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    y: Array = np.copysign(1.0 - poly * np.exp(-z * z), x)
    return y


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "swish": silu,
    "gelu": gelu_erf,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "relu2": relu_squared,
}


def rotate(x: Array, cos: Array, sin: Array) -> Array:  # [T, H, N], [T, R/2], [T, R/2] -> [T, H, N]
    """Rotary positions on the first R of N numbers; pairs are R/2 apart."""
    half = cos.shape[-1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    left, right = x[..., :half], x[..., half : 2 * half]
    y = np.empty_like(x)
    np.subtract(left * cos, right * sin, out=y[..., :half])
    np.add(right * cos, left * sin, out=y[..., half : 2 * half])
    if 2 * half < x.shape[-1]:
        y[..., 2 * half :] = x[..., 2 * half :]
    return y


def causal_mask(start: int, T: int, begin: int, window: int | None) -> Array:  # -> [T, start + T - begin]
    """0 where query start+t attends to key begin+s, -inf where it does not."""
    behind = np.arange(start, start + T)[:, None] - np.arange(begin, start + T)[None, :]
    hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)
    return np.where(hidden, np.float32(-np.inf), np.float32(0.0))


def attention(
    q: Array, k: Array, v: Array, window: int | None, cap: float | None
) -> Array:  # [T, H, N], [K, S, N], [K, S, N] -> [T, H * N]
    """Causal attention of the last T of S positions. Queries are already scaled; G of them use one key/value head."""
    (T, H, N), (K, S, _) = q.shape, k.shape
    G = H // K
    if T == 1:  # one product per query: BLAS is slow at products of a few rows
        if window is not None:
            k, v = k[:, -window:], v[:, -window:]
        scores = q.reshape(K, G, 1, N) @ k[:, None].transpose(0, 1, 3, 2)  # [K, G, 1, S]
        if cap is not None:
            scores = softcap(scores, cap)
        return (softmax(scores).reshape(K, G, -1) @ v).reshape(1, H * N)
    mixed = np.empty((T, H * N), q.dtype)
    step = min(_QUERIES, max(_FEWEST, _SCORES // (H * S)))
    for top in range(0, T, step):  # a block of queries needs only the keys before its end
        block = q[top : top + step]
        t, first = len(block), S - T + top  # its first query is at this position
        begin, end = 0 if window is None else max(0, first + 1 - window), first + t
        rows = block.reshape(t, K, G, N).transpose(1, 2, 0, 3).reshape(K, G * t, N)
        scores = (rows @ k[:, begin:end].transpose(0, 2, 1)).reshape(K, G, t, end - begin)
        if cap is not None:
            scores = softcap(scores, cap)
        if window is None:
            scores[..., first:] += causal_mask(first, t, first, None)  # every query of the block sees what is before it
        else:
            scores += causal_mask(first, t, begin, window)
        scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        total = np.add.reduce(scores, axis=-1, keepdims=True)  # [K, G, t, 1]
        y = (scores.reshape(K, G * t, -1) @ v[:, begin:end]).reshape(K, G, t, N)
        y /= total  # fewer numbers than the scores
        mixed[top : top + t] = y.transpose(2, 0, 1, 3).reshape(t, H * N)
    return mixed
