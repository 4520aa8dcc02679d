"""Cross-entropy through a vocabulary matrix that never holds the [N, V] logits.

The loss is a scalar, so its gradients are known up to one factor before backward begins. The forward pass computes
them chunk by chunk (chunks.py), the backward pass scales them and hands them over. Each gradient buffer is handed
to autograd exactly once and no reference to it is kept, so autograd adopts it as `.grad` without a copy.

`reduction="none"` is different: each row has its own upstream gradient, unknown until backward, so backward
computes the chunks again. The same recomputation serves a second backward through a retained graph.
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
    """The loss of `F.cross_entropy(softcap(F.linear(h, W, bias)), targets)`, in a fraction of its memory.

    W is any [V, D] matrix: a tied table, an untied head. Memory beyond the gradients is one chunk of logits,
    4 * chunk * V bytes. It works in float64, float32, bf16 and under autocast; the loss of half-precision inputs
    comes back in float32.

    bias             added to the logits before the softcap.
    softcap          "tanh": cap * tanh(z / cap), parameter-golf's and Gemma's form.
                     "sigmoid": cap * sigmoid(4 z / cap), so slope 1 at z = 0 and a range of (0, cap);
                     30 * sigmoid(z / 7.5), as modded-nanogpt writes it, is softcap=30.
    z_loss           adds z_loss * logsumexp(logits)^2 to each row, the logits being the capped ones.
    label_smoothing  as in F.cross_entropy.
    ignore_index     rows with this target count for nothing: not in the loss, the mean, or the gradients.
    reduction        "mean" is over the rows that count. When none does, loss and gradients are 0, where
                     F.cross_entropy has 0/0: a batch with nothing to predict teaches nothing.
    chunk            tokens per chunk; by default chosen from V, D and the number of tokens.

    The gradients are made in the forward pass, so gradients of gradients and torch.func transforms are refused.
    """
    if reduction not in ("mean", "sum", "none"):
        raise BadRequest(f"reduction is {reduction!r}; it is one of 'mean', 'sum', 'none'")
    shape = loss_shape(softcap, softcap_kind, z_loss, label_smoothing)
    check_inputs(h, W, targets, bias, chunk)
    result: Tensor = _fused(
        h.reshape(-1, W.shape[1]), W, bias, targets.reshape(-1), shape, ignore_index, reduction, chunk
    )
    return result.reshape(targets.shape) if reduction == "none" else result


def softcapped(z: Tensor, softcap: float | None, kind: SoftcapKind = "tanh") -> Tensor:
    """The logits as the loss sees them, for when all of them are wanted."""
    if softcap is None:
        return z
    return softcap * (torch.tanh(z / softcap) if kind == "tanh" else torch.sigmoid(z * (4.0 / softcap)))


@dataclass(frozen=True, slots=True)
class _Call:
    """Everything about a call that is not a tensor."""

    shape: Shape
    reduction: Reduction
    chunk: int
    products: torch.dtype
    learning: bool


def loss_shape(softcap: float | None, kind: SoftcapKind, z_loss: float, label_smoothing: float) -> Shape:
    if kind not in ("tanh", "sigmoid"):
        raise BadRequest(f"softcap_kind is {kind!r}; it is 'tanh' or 'sigmoid'")
    if softcap is not None and not (0.0 < softcap < math.inf):
        raise BadRequest(f"softcap is {softcap}; it is a positive number, or None for no cap")
    if not 0.0 <= label_smoothing <= 1.0:
        raise BadRequest(f"label_smoothing is {label_smoothing}; it lies between 0 and 1")
    if softcap is None:
        return Shape(z_loss=z_loss, label_smoothing=label_smoothing)
    if kind == "sigmoid":
        height, slope, offset = softcap, 4 / softcap, 0.0
    else:  # cap * tanh(z / cap) = 2 cap * sigmoid(2z / cap) - cap
        height, slope, offset = 2 * softcap, 2 / softcap, -softcap
    return Shape(height, slope, offset, True, z_loss, label_smoothing)


def check_inputs(h: Tensor, W: Tensor, targets: Tensor, bias: Tensor | None, chunk: int | None) -> None:
    if hasattr(W, "full_tensor") or hasattr(h, "full_tensor"):
        raise BadRequest(
            "h or W is a sharded DTensor; call the loss where FSDP has gathered W, or pass W.full_tensor(), "
            "and shard the batch rather than the vocabulary"
        )
    if W.ndim != 2 or h.ndim < 1 or h.shape[-1] != W.shape[1]:
        raise BadRequest(f"h is {list(h.shape)} and W is {list(W.shape)}; they are [..., D] and [V, D] with one D")
    if targets.shape != h.shape[:-1]:
        raise BadRequest(f"targets are {list(targets.shape)} but h has rows {list(h.shape[:-1])}; one target per row")
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise BadRequest(f"targets are {targets.dtype}; they are token ids, any integer type")
    if bias is not None and bias.shape != W.shape[:1]:
        raise BadRequest(f"bias is {list(bias.shape)} but W has {W.shape[0]} rows; one bias per row")
    if chunk is not None and chunk < 1:
        raise BadRequest(f"chunk is {chunk}; it is a number of tokens, at least 1")
    if not (h.is_floating_point() and W.is_floating_point()):
        raise BadRequest(f"h is {h.dtype} and W is {W.dtype}; both are floating point")


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
            "tied_cross_entropy makes its gradients in the forward pass, so torch.func transforms can't see them; "
            "use F.cross_entropy(F.linear(h, W), targets) inside torch.func"
        )
    valid = targets != ignore_index
    safe = torch.where(valid, targets, 0).long()
    if targets.device.type == "cpu" and safe.numel():
        low, high = (int(x) for x in safe.aminmax())
        if low < 0 or high >= W.shape[0]:
            wrong = low if low < 0 else high
            raise BadRequest(f"a target is {wrong} but W has {W.shape[0]} rows; mark rows to skip with {ignore_index}")
    products = product_dtype(h, W)
    call = _Call(
        shape=shape,
        reduction=reduction,
        chunk=chunk or default_chunk(h.shape[0], W.shape[0], W.shape[1], max(4, products.itemsize)),
        products=products,
        learning=torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (h, W, bias)),
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
        early = call.learning and call.reduction != "none"
        losses, gradients = _compute(h, W, bias, targets, weight, call, ctx.needs_input_grad[:3] if early else ())
        if early:
            ctx.held = gradients
        if call.learning:
            ctx.save_for_backward(h, W, bias, targets, weight)
        return losses if call.reduction == "none" else (losses * weight).sum()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # torch's own once_differentiable lets this pass when upstream is a constant, and second-order terms vanish.
            raise BadRequest(
                "tied_cross_entropy has no gradient of its gradient (create_graph=True); "
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
    # fp16 has too little range for a gradient that the loss scaler has not yet scaled; autograd casts it later.
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
    # Skipping rows needs their number, which on a GPU would wait for everything queued before it.
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
