"""Cross-entropy through a vocabulary matrix without the [N, V] logits, on MLX.

The loss is a scalar, so its gradients are known up to one factor in the forward pass: a loop over chunks of tokens
computes loss and gradients together, and the function's vjp returns them scaled.

MLX is lazy: chunks that are only recorded would all be in memory at once, so each chunk is evaluated before the next
begins. Inside a transformation that frees nothing, because traced arrays keep everything they were computed from. So
the loop works on untraced copies of h, and of W unless the caller passes it untraced (`plain`). For the same reason it
cannot run inside mx.compile.
"""

from __future__ import annotations

from typing import Literal, cast

import mlx.core as mx
import numpy as np

from tiebeam.errors import BadRequest

_LOGIT_BYTES = 32 << 20


def tied_cross_entropy(  # [..., D], [V, D], [...] -> []
    h: mx.array,
    W: mx.array,
    targets: mx.array,
    *,
    softcap: float | None = None,
    z_loss: float = 0.0,
    reduction: Literal["mean", "sum"] = "mean",
    chunk: int | None = None,
    gradients: bool = True,
    plain: mx.array | None = None,
) -> mx.array:
    """The mean or summed cross-entropy of softcap * tanh(h Wᵀ / softcap), plus z_loss * logsumexp² per row.

    Args:
        chunk: tokens whose logits exist at a time; by default about 32 MB of logits.
        gradients: False in evaluation. MLX cannot tell whether gradients will be needed, and they are most of the work.
        plain: W as it is outside the transformation, to avoid a copy.
    """
    if targets.shape != h.shape[:-1] or h.shape[-1] != W.shape[1]:
        raise BadRequest(
            f"h is {list(h.shape)}, W is {list(W.shape)} and targets is {list(targets.shape)}; "
            "expected [..., D], [V, D] and [...]"
        )
    rows, flat = h.reshape(-1, h.shape[-1]), targets.reshape(-1).astype(mx.int32)
    chunk = chunk or default_chunk(rows.shape[0], W.shape[0])
    weight = 1.0 / max(1, rows.shape[0]) if reduction == "mean" else 1.0
    if not gradients:
        return _loss_by_chunks(rows, W, flat, softcap, z_loss, weight, chunk, with_gradients=False)[0]

    def forward(h: mx.array, W: mx.array) -> tuple[mx.array, ...]:
        table = _untraced(W) if plain is None else plain
        return _loss_by_chunks(_untraced(h), table, flat, softcap, z_loss, weight, chunk, with_gradients=True)

    fused = mx.custom_function(forward)

    @fused.vjp
    def backward(
        primals: tuple[mx.array, ...], upstream: tuple[mx.array, ...], outputs: tuple[mx.array, ...]
    ) -> tuple[mx.array, mx.array]:
        return outputs[1] * upstream[0], outputs[2] * upstream[0]

    return cast(tuple[mx.array, ...], fused(rows, W))[0]


def default_chunk(tokens: int, vocab: int) -> int:
    """Equal chunks of at least 128 tokens: each chunk reads and writes the full gradient of W once."""
    most = max(128, _LOGIT_BYTES // (4 * vocab))
    chunks = max(1, -(-tokens // most))
    return max(1, -(-tokens // chunks))


def softcapped(z: mx.array, softcap: float | None) -> mx.array:
    return z if softcap is None else softcap * mx.tanh(z / softcap)


def _loss_by_chunks(  # [N, D], [V, D], [N] -> [], and if with_gradients [N, D], [V, D]
    h: mx.array,
    W: mx.array,
    targets: mx.array,
    softcap: float | None,
    z_loss: float,
    weight: float,
    chunk: int,
    with_gradients: bool,
) -> tuple[mx.array, ...]:
    """The loss times `weight`, and its gradients with respect to h and W."""
    loss, dh, dW = mx.array(0.0), [], mx.zeros(W.shape if with_gradients else (), W.dtype)
    for start in range(0, h.shape[0], chunk):
        part, target = h[start : start + chunk], targets[start : start + chunk, None]
        found, g = _rows(part @ W.T, target, softcap, z_loss, weight, with_gradients)
        loss = loss + found
        if with_gradients:
            dh.append(g @ W)
            dW = mx.addmm(dW, g.T, part)
        del g
        mx.eval(loss, dW, dh[-1:])
    return (loss, mx.concatenate(dh), dW) if with_gradients else (loss,)


def _rows(  # [C, V], [C, 1] -> [], [C, V]
    z: mx.array, target: mx.array, softcap: float | None, z_loss: float, weight: float, with_gradients: bool
) -> tuple[mx.array, mx.array]:
    """The weighted loss of the logits and its gradient with respect to them."""
    u = softcapped(z, softcap)
    log_sum = mx.logsumexp(u, axis=1, keepdims=True)
    loss = log_sum - mx.take_along_axis(u, target, axis=1)
    if z_loss:
        loss = loss + z_loss * log_sum.square()
    total = loss.sum() * weight
    if not with_gradients:
        return total, total
    g = mx.exp(u - log_sum) * (1.0 + 2.0 * z_loss * log_sum)
    g = mx.put_along_axis(g, target, mx.take_along_axis(g, target, axis=1) - 1.0, axis=1)
    if softcap is not None:
        g = g * (1.0 - (u / softcap).square())
    return total, g * weight


def _untraced(a: mx.array) -> mx.array:
    return mx.array(np.array(a))
