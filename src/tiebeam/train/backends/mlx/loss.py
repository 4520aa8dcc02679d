"""Cross-entropy through a vocabulary matrix that never holds the [N, V] logits, on MLX.

The loss is a scalar, so its gradients are known up to one factor before anyone asks: the walk over chunks of tokens
computes loss and gradients together, and the function's vjp hands them over.

MLX is lazy and runs far ahead of what is finished: chunks that are only written down one after another are all in
memory at once. So each chunk is evaluated before the next begins. Inside a transformation that frees nothing, because
arrays that are being traced keep all that they were made of; the walk therefore works on plain copies of h, and of W
unless the caller has it at hand untraced (`plain`). For the same reason it can't stand inside mx.compile.
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
    """The mean or summed loss of softcap * tanh(h Wᵀ / softcap), plus z_loss * logsumexp² per row.

    chunk      tokens whose logits exist at one time; by default about 32 MB of them.
    gradients  False where none will be asked for, as in an evaluation: MLX can't tell, and they are most of the work.
    plain      W as it is outside the transformation, to spare a copy of it.
    """
    if targets.shape != h.shape[:-1] or h.shape[-1] != W.shape[1]:
        raise BadRequest(
            f"h is {list(h.shape)}, W {list(W.shape)} and the targets {list(targets.shape)}; "
            "they are [..., D], [V, D] and [...]"
        )
    rows, flat = h.reshape(-1, h.shape[-1]), targets.reshape(-1).astype(mx.int32)
    chunk = chunk or default_chunk(rows.shape[0], W.shape[0])
    weight = 1.0 / max(1, rows.shape[0]) if reduction == "mean" else 1.0
    if not gradients:
        return _walk(rows, W, flat, softcap, z_loss, weight, chunk, learning=False)[0]

    def forward(h: mx.array, W: mx.array) -> tuple[mx.array, ...]:
        table = _untraced(W) if plain is None else plain
        return _walk(_untraced(h), table, flat, softcap, z_loss, weight, chunk, learning=True)

    fused = mx.custom_function(forward)

    @fused.vjp
    def backward(
        primals: tuple[mx.array, ...], upstream: tuple[mx.array, ...], made: tuple[mx.array, ...]
    ) -> tuple[mx.array, mx.array]:
        return made[1] * upstream[0], made[2] * upstream[0]

    return cast(tuple[mx.array, ...], fused(rows, W))[0]


def default_chunk(tokens: int, vocab: int) -> int:
    """Equal chunks of at least 128 tokens: each reads and writes the table's whole gradient once."""
    most = max(128, _LOGIT_BYTES // (4 * vocab))
    pieces = max(1, -(-tokens // most))
    return max(1, -(-tokens // pieces))


def softcapped(z: mx.array, softcap: float | None) -> mx.array:
    return z if softcap is None else softcap * mx.tanh(z / softcap)


def _walk(  # [N, D], [V, D], [N] -> [], and if learning [N, D], [V, D]
    h: mx.array,
    W: mx.array,
    targets: mx.array,
    softcap: float | None,
    z_loss: float,
    weight: float,
    chunk: int,
    learning: bool,
) -> tuple[mx.array, ...]:
    """The loss times `weight`, and its gradients by h and W."""
    loss, dh, dW = mx.array(0.0), [], mx.zeros(W.shape if learning else (), W.dtype)
    for start in range(0, h.shape[0], chunk):
        part, target = h[start : start + chunk], targets[start : start + chunk, None]
        found, g = _rows(part @ W.T, target, softcap, z_loss, weight, learning)
        loss = loss + found
        if learning:
            dh.append(g @ W)
            dW = mx.addmm(dW, g.T, part)
        del g
        mx.eval(loss, dW, dh[-1:])
    return (loss, mx.concatenate(dh), dW) if learning else (loss,)


def _rows(  # [C, V], [C, 1] -> [], [C, V]
    z: mx.array, target: mx.array, softcap: float | None, z_loss: float, weight: float, learning: bool
) -> tuple[mx.array, mx.array]:
    """Logits to the weighted loss and its gradient by the logits."""
    u = softcapped(z, softcap)
    log_sum = mx.logsumexp(u, axis=1, keepdims=True)
    loss = log_sum - mx.take_along_axis(u, target, axis=1)
    if z_loss:
        loss = loss + z_loss * log_sum.square()
    total = loss.sum() * weight
    if not learning:
        return total, total
    g = mx.exp(u - log_sum) * (1.0 + 2.0 * z_loss * log_sum)
    g = mx.put_along_axis(g, target, mx.take_along_axis(g, target, axis=1) - 1.0, axis=1)
    if softcap is not None:
        g = g * (1.0 - (u / softcap).square())
    return total, g * weight


def _untraced(a: mx.array) -> mx.array:
    return mx.array(np.array(a))
