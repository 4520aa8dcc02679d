"""The fused tied loss as an autograd function.

The loss is a scalar, so its gradients are known up to one factor before backward begins. The forward pass computes them
chunk by chunk (chunked_loss.py); the backward pass scales them and returns them. Each gradient buffer is given to
autograd once and no reference to it is kept, so autograd adopts it as `.grad` without a copy.

With `reduction="none"` each row has its own upstream gradient, unknown until backward, so backward computes the chunks
again. The same recomputation serves a second backward through a retained graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tiebeam.errors import BadRequest
from tiebeam.nn.call_mode import eager_only, in_functorch
from tiebeam.nn.chunked_loss import Work, default_chunk, losses_and_gradients, product_dtype
from tiebeam.nn.logit_gradient import RowMetrics
from tiebeam.nn.loss_buffers import LossBuffers, fresh
from tiebeam.nn.loss_options import Reduction, Shape, targets_mean_to_1


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of a call that are not tensors."""

    shape: Shape
    reduction: Reduction
    chunk: int
    products: torch.dtype
    with_gradients: bool
    with_metrics: bool
    buffers: LossBuffers | None


@eager_only
def fused_loss(
    h: Tensor,  # [N, D]
    W: Tensor,
    bias: Tensor | None,
    targets: Tensor,  # [...]
    class_weights: Tensor | None,
    shape: Shape,
    ignore_index: int,
    reduction: Reduction,
    chunk: int | None,
    with_metrics: bool,
    buffers: LossBuffers | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor] | None]:
    """The loss, and accuracy, predictions and z-loss if they are wanted."""
    if in_functorch():
        raise BadRequest(
            "tied_cross_entropy computes its gradients in the forward pass, which torch.func does not support; "
            "use F.cross_entropy(F.linear(h, W), targets) inside torch.func"
        )
    ids = targets.reshape(-1)
    valid = ids != ignore_index
    safe = torch.where(valid, ids, 0).long()
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
        with_metrics=with_metrics,
        buffers=buffers,
    )
    if class_weights is not None:
        class_weights = class_weights.to(torch.float64 if products == torch.float64 else torch.float32)
        if reduction == "mean":
            class_weights = targets_mean_to_1(class_weights, safe[valid])
    loss, predictions, z_loss = _TiedCrossEntropy.apply(h, W, bias, safe, valid, class_weights, call)  # type: ignore[no-untyped-call]
    per_row = targets.shape if reduction == "none" else torch.Size()
    if predictions is None:
        return loss.reshape(per_row), None
    accuracy = (predictions == safe).sum() / valid.sum().clamp_min(1)
    return loss.reshape(per_row), (accuracy, predictions.reshape(targets.shape), z_loss.reshape(per_row))


class _TiedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        W: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        valid: Tensor,
        class_weights: Tensor | None,
        call: _Call,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        ctx.call, ctx.held = call, None
        weight = valid.to(torch.float64 if call.products == torch.float64 else torch.float32)
        if call.reduction == "mean":
            weight = weight / weight.sum().clamp_min(1.0)
        in_forward = call.with_gradients and call.reduction != "none"
        metrics = RowMetrics.of(weight) if call.with_metrics else None
        wanted = ctx.needs_input_grad[:3] if in_forward else ()
        losses, gradients = _compute(h, W, bias, targets, weight, class_weights, call, wanted, metrics)
        if in_forward:
            ctx.held = gradients
        if call.with_gradients:
            ctx.save_for_backward(h, W, bias, targets, weight, class_weights)

        def reduced(rows: Tensor) -> Tensor:
            return rows if call.reduction == "none" else (rows * weight).sum()

        if metrics is None:
            return reduced(losses), None, None
        z_loss = reduced(metrics.z_losses)
        ctx.mark_non_differentiable(metrics.predictions, z_loss)
        return reduced(losses), metrics.predictions, z_loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_of_metrics: Tensor | None) -> tuple[Tensor | None, ...]:
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
            h, W, bias, targets, weight, class_weights = ctx.saved_tensors
            wanted = ctx.needs_input_grad[:3]
            _, gradients = _compute(h, W, bias, targets, weight * upstream, class_weights, ctx.call, wanted)
        return (*gradients, None, None, None, None)


def _compute(
    h: Tensor,
    W: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    weight: Tensor,
    class_weights: Tensor | None,
    call: _Call,
    wanted: tuple[bool, ...],
    metrics: RowMetrics | None = None,
) -> tuple[Tensor, list[Tensor | None]]:
    """Each row's loss (0 where its weight is 0), and the wanted gradients of sum(weight * loss).

    `metrics` get the same rows; those of weight 0 keep -1 and 0.
    """
    wide = weight.dtype
    # fp16 has too little range for a gradient before loss scaling; autograd casts it later.
    take = fresh if call.buffers is None else call.buffers.take
    dh, dW, dbias = (
        take(t.shape, wide if t.dtype == torch.float16 else t.dtype, t.device) if want and t is not None else None
        for want, t in zip(wanted or (False, False, False), (h, W, bias), strict=True)
    )
    if bias is not None:
        bias = bias.to(wide)
        dbias = None if dbias is None else torch.empty_like(bias)
    counts = weight != 0
    # Skipping rows needs their number, which would synchronize a GPU.
    keep = counts.nonzero().squeeze(1) if h.device.type == "cpu" and not bool(counts.all()) else None
    all_losses, all_dh = None, dh
    found = metrics
    if keep is not None:
        all_losses = weight.new_zeros(h.shape[0])
        h, targets, weight = h[keep], targets[keep], weight[keep]
        dh = None if dh is None else dh.new_empty(h.shape)
        found = None if metrics is None else RowMetrics.of(weight)
    work = Work(
        h, W, targets, weight, bias, call.shape, call.chunk, call.products, dh, dW, dbias, class_weights, found,
        call.buffers,
    )  # fmt: skip
    losses = losses_and_gradients(work)
    if metrics is not None and found is not None:
        metrics.fill(found, counts, keep)
    if keep is None:
        losses = torch.where(counts, losses, 0.0)
    else:
        assert all_losses is not None
        losses = all_losses.index_copy_(0, keep, losses)
        if dh is not None and all_dh is not None:
            dh = all_dh.zero_().index_copy_(0, keep, dh)
    return losses, [dh, dW, dbias]
