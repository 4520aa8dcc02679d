"""Cross-entropy through a vocabulary matrix without the [N, V] logits.

The loss is a scalar, so its gradients are known up to one factor before backward begins. The forward pass computes them
chunk by chunk (chunked_loss.py); the backward pass scales them and returns them. Each gradient buffer is given to
autograd once and no reference to it is kept, so autograd adopts it as `.grad` without a copy.

With `reduction="none"` each row has its own upstream gradient, unknown until backward, so backward computes the chunks
again. The same recomputation serves a second backward through a retained graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from tiebeam.errors import BadRequest
from tiebeam.nn.call_mode import eager_only, in_functorch
from tiebeam.nn.chunked_loss import Shape, Work, default_chunk, losses_and_gradients, product_dtype

Reduction = Literal["mean", "sum", "none"]
SoftcapKind = Literal["tanh", "sigmoid"]


def tied_cross_entropy(  # [..., D], [V, D], [...] -> scalar, or [...] with reduction="none"
    h: Tensor,
    W: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,  # [V]
    softcap: float | None = None,
    softcap_kind: SoftcapKind = "tanh",
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    chunk: int | None = None,
) -> Tensor:
    """`F.cross_entropy(softcap(F.linear(h, W, bias)), targets)`, in a fraction of its memory.

    Memory beyond the gradients is one chunk of logits, 4 * chunk * V bytes. It works in float64, float32, bf16 and
    under autocast; half-precision inputs give a float32 loss.

    Args:
        h: hidden states [..., D].
        W: any [V, D] matrix: a tied embedding or an untied head.
        targets: token ids [...].
        bias: [V], added to the logits before the softcap.
        softcap: cap of the logits, or None.
        softcap_kind: "tanh" is cap * tanh(z / cap), as in parameter-golf and Gemma. "sigmoid" is
            cap * sigmoid(4 z / cap), with slope 1 at z = 0 and range (0, cap); modded-nanogpt's 30 * sigmoid(z / 7.5)
            is softcap=30.
        z_loss: adds z_loss * logsumexp(logits)^2 to each row, with capped logits.
        label_smoothing: as in F.cross_entropy.
        ignore_index: rows with this target do not count in the loss, the mean, or the gradients.
        reduction: "mean" is over the rows that count; if there are none, loss and gradients are 0, where
            F.cross_entropy returns NaN. "sum", or "none" for the loss of each row.
        chunk: tokens per chunk; by default chosen from V, D and the number of tokens.

    Returns:
        A scalar, or [...] with reduction="none".

    Raises:
        BadRequest: shapes or dtypes do not fit, a target is out of range, or the gradient would have to be
            differentiated again (create_graph=True, torch.func), because it is computed in the forward pass.

    >>> h = torch.randn(4, 10, 16, requires_grad=True)
    >>> W = torch.randn(100, 16, requires_grad=True)
    >>> targets = torch.randint(100, (4, 10))
    >>> loss = tied_cross_entropy(h, W, targets)
    >>> expected = torch.nn.functional.cross_entropy((h @ W.T).flatten(0, 1), targets.flatten())
    >>> torch.allclose(loss, expected, atol=1e-5)
    True
    >>> loss.backward()
    """
    if reduction not in ("mean", "sum", "none"):
        raise BadRequest(f"reduction={reduction!r} is not supported; use 'mean', 'sum' or 'none'")
    shape = loss_shape(softcap, softcap_kind, z_loss, label_smoothing)
    check_inputs(h, W, targets, bias, chunk)
    result: Tensor = _fused(
        h.reshape(-1, W.shape[1]), W, bias, targets.reshape(-1), shape, ignore_index, reduction, chunk
    )
    return result.reshape(targets.shape) if reduction == "none" else result


def softcapped(z: Tensor, softcap: float | None, kind: SoftcapKind = "tanh") -> Tensor:
    """Apply the softcap to full logits."""
    if softcap is None:
        return z
    return softcap * (torch.tanh(z / softcap) if kind == "tanh" else torch.sigmoid(z * (4.0 / softcap)))


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of a call that are not tensors."""

    shape: Shape
    reduction: Reduction
    chunk: int
    products: torch.dtype
    with_gradients: bool


def loss_shape(softcap: float | None, kind: SoftcapKind, z_loss: float, label_smoothing: float) -> Shape:
    if kind not in ("tanh", "sigmoid"):
        raise BadRequest(f"softcap_kind={kind!r} is not supported; use 'tanh' or 'sigmoid'")
    if softcap is not None and not (0.0 < softcap < math.inf):
        raise BadRequest(f"softcap={softcap} must be a positive number, or None for no cap")
    if not 0.0 <= label_smoothing <= 1.0:
        raise BadRequest(f"label_smoothing={label_smoothing} must be between 0 and 1")
    if softcap is None:
        return Shape(z_loss=z_loss, label_smoothing=label_smoothing)
    if kind == "sigmoid":
        amplitude, slope, offset = softcap, 4 / softcap, 0.0
    else:  # cap * tanh(z / cap) = 2 cap * sigmoid(2z / cap) - cap
        amplitude, slope, offset = 2 * softcap, 2 / softcap, -softcap
    return Shape(amplitude, slope, offset, True, z_loss, label_smoothing)


def check_inputs(h: Tensor, W: Tensor, targets: Tensor, bias: Tensor | None, chunk: int | None) -> None:
    if hasattr(W, "full_tensor") or hasattr(h, "full_tensor"):
        raise BadRequest(
            "h or W is a sharded DTensor; call the loss inside the FSDP module that gathers W, or pass W.full_tensor()"
        )
    if W.ndim != 2 or h.ndim < 1 or h.shape[-1] != W.shape[1]:
        raise BadRequest(f"h is {list(h.shape)} and W is {list(W.shape)}; expected [..., D] and [V, D] with the same D")
    if targets.shape != h.shape[:-1]:
        raise BadRequest(
            f"targets are {list(targets.shape)}, but h has rows {list(h.shape[:-1])}; expected one target per row"
        )
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise BadRequest(f"targets are {targets.dtype}; expected token ids of an integer dtype")
    if bias is not None and bias.shape != W.shape[:1]:
        raise BadRequest(f"bias is {list(bias.shape)}, but W has {W.shape[0]} rows; expected one bias per row")
    if chunk is not None and chunk < 1:
        raise BadRequest(f"chunk={chunk} must be a number of tokens, at least 1")
    if not (h.is_floating_point() and W.is_floating_point()):
        raise BadRequest(f"h is {h.dtype} and W is {W.dtype}; expected floating point")


@eager_only
def _fused(
    h: Tensor,
    W: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    shape: Shape,
    ignore_index: int,
    reduction: Reduction,
    chunk: int | None,
) -> Tensor:
    if in_functorch():
        raise BadRequest(
            "tied_cross_entropy computes its gradients in the forward pass, which torch.func does not support; "
            "use F.cross_entropy(F.linear(h, W), targets) inside torch.func"
        )
    valid = targets != ignore_index
    safe = torch.where(valid, targets, 0).long()
    if targets.device.type == "cpu" and safe.numel():
        low, high = (int(x) for x in safe.aminmax())
        if low < 0 or high >= W.shape[0]:
            wrong = low if low < 0 else high
            raise BadRequest(
                f"target {wrong} is out of range for W with {W.shape[0]} rows; mark rows to skip with {ignore_index}"
            )
    products = product_dtype(h, W)
    call = _Call(
        shape=shape,
        reduction=reduction,
        chunk=chunk or default_chunk(h.shape[0], W.shape[0], W.shape[1], max(4, products.itemsize)),
        products=products,
        with_gradients=torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (h, W, bias)),
    )
    return cast(Tensor, _TiedCrossEntropy.apply(h, W, bias, safe, valid, call))  # type: ignore[no-untyped-call]


class _TiedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        W: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        valid: Tensor,
        call: _Call,
    ) -> Tensor:
        ctx.call, ctx.held = call, None
        weight = valid.to(torch.float64 if call.products == torch.float64 else torch.float32)
        if call.reduction == "mean":
            weight = weight / weight.sum().clamp_min(1.0)
        in_forward = call.with_gradients and call.reduction != "none"
        losses, gradients = _compute(h, W, bias, targets, weight, call, ctx.needs_input_grad[:3] if in_forward else ())
        if in_forward:
            ctx.held = gradients
        if call.with_gradients:
            ctx.save_for_backward(h, W, bias, targets, weight)
        return losses if call.reduction == "none" else (losses * weight).sum()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # torch's once_differentiable allows this when upstream is a constant, and loses second-order terms.
            raise BadRequest(
                "tied_cross_entropy does not support second derivatives (create_graph=True); "
                "use F.cross_entropy(F.linear(h, W), targets) where you need one"
            )
        if ctx.held is not None:
            gradients, ctx.held = ctx.held, None
            if upstream.device.type != "cpu" or float(upstream) != 1.0:
                gradients = [None if g is None else g.mul_(upstream) for g in gradients]
        else:
            h, W, bias, targets, weight = ctx.saved_tensors
            _, gradients = _compute(h, W, bias, targets, weight * upstream, ctx.call, ctx.needs_input_grad[:3])
        return (*gradients, None, None, None)


def _compute(
    h: Tensor,
    W: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weight: Tensor,
    call: _Call,
    wanted: tuple[bool, ...],
) -> tuple[Tensor, list[Tensor | None]]:
    """Each row's loss (0 where its weight is 0), and the wanted gradients of sum(weight * loss)."""
    wide = weight.dtype
    # fp16 has too little range for a gradient before loss scaling; autograd casts it later.
    buffers = [
        torch.empty_like(t, dtype=wide if t.dtype == torch.float16 else None, memory_format=torch.contiguous_format)
        if want and t is not None
        else None
        for want, t in zip(wanted or (False, False, False), (h, W, bias), strict=True)
    ]
    dh, dW, dbias = buffers
    if bias is not None:
        bias = bias.to(wide)
        dbias = None if dbias is None else torch.empty_like(bias)
    counts = weight != 0
    # Skipping rows needs their number, which would synchronize a GPU.
    keep = counts.nonzero().squeeze(1) if h.device.type == "cpu" and not bool(counts.all()) else None
    all_losses, all_dh = None, dh
    if keep is not None:
        all_losses = weight.new_zeros(h.shape[0])
        h, targets, weight = h[keep], targets[keep], weight[keep]
        dh = None if dh is None else dh.new_empty(h.shape)
    losses = losses_and_gradients(
        Work(h, W, targets, weight, bias, call.shape, call.chunk, call.products, dh=dh, dW=dW, dbias=dbias)
    )
    if keep is None:
        losses = torch.where(counts, losses, 0.0)
    else:
        assert all_losses is not None
        losses = all_losses.index_copy_(0, keep, losses)
        if dh is not None and all_dh is not None:
            dh = all_dh.zero_().index_copy_(0, keep, dh)
    return losses, [dh, dW, dbias]
