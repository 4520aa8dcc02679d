"""Cross-entropy through a vocabulary matrix of which every rank holds a block of rows.

Each rank has its own tokens, and they need the logits of all rows. A chunk of hidden states is all-gathered, multiplied
by the local rows, and reduced to three numbers per token (largest logit, sum of exponentials, target logit), which two
small all-reduces combine. The gradients of the hidden states return by a reduce-scatter. So each rank sends
2 (N - 1) T D numbers whatever V is, no rank holds more than [chunk, V/N] logits, and the gradient of the local rows is
complete, because every rank has seen every token.

As in loss.py the gradients are computed in the forward pass. Ignored rows are not sent. Ranks may have different token
counts, and the shorter ones are padded with rows of weight 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from tiebeam.errors import BadRequest
from tiebeam.nn.call_mode import eager_only, in_functorch
from tiebeam.nn.chunked_loss import default_chunk, no_autocast, product_dtype, row_blocks
from tiebeam.nn.collectives import RankGroup
from tiebeam.nn.logit_gradient import RowMetrics
from tiebeam.nn.loss_options import (
    LossAndMetrics,
    Reduction,
    SoftcapKind,
    check_class_weights,
    check_inputs,
    loss_shape,
    targets_mean_to_1,
)
from tiebeam.nn.sharded_softmax import Call, combined_, predictions, to_gradient_

_LEAST_EACH = 64  # minimum tokens of each rank in a chunk: smaller messages are inefficient


def sharded_cross_entropy(  # [..., D], [V/N, D], [...] -> scalar, or [...] with reduction="none"
    h: Tensor,
    block: Tensor,
    targets: Tensor,
    vocab: int,
    ranks: RankGroup,
    *,
    softcap: float | None = None,
    softcap_kind: SoftcapKind = "tanh",
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    class_weights: Tensor | None = None,  # [V], the same on every rank
    scale_by_probability: bool = False,
    return_metrics: bool = False,
    chunk: int | None = None,
) -> Tensor | LossAndMetrics:
    """`tied_cross_entropy` over the tokens of all ranks; `block` is this rank's rows of W (`ranks.shard(vocab)`).

    "mean" and "sum" are over the tokens of all ranks that count, with the same value on every rank. "none" gives the
    losses of this rank's tokens, without gradients. `chunk` counts the tokens of all ranks together. Of the metrics,
    `accuracy` is over the tokens of all ranks that count, and `predictions` are those of this rank's tokens.

    The gradient of `block` is that of the returned loss. The gradient of `h` is N times that, for N ranks, because
    the layers behind it are data-parallel and DDP and FSDP divide the sum of their gradients by N.
    """
    if reduction not in ("mean", "sum", "none"):
        raise BadRequest(f"reduction={reduction!r} is not supported; use 'mean', 'sum' or 'none'")
    check_inputs(h, block, targets, None, chunk)
    with_gradients = torch.is_grad_enabled() and (h.requires_grad or block.requires_grad)
    if with_gradients and reduction == "none":
        raise BadRequest("reduction='none' over a sharded vocabulary has no gradients; call it under torch.no_grad()")
    check_class_weights(class_weights, vocab)
    shape = loss_shape(softcap, softcap_kind, z_loss, label_smoothing, scale_by_probability)
    call = Call(shape, vocab, ranks, reduction, chunk, ignore_index, class_weights, return_metrics)
    loss, *metrics = _sharded(h.reshape(-1, h.shape[-1]), block, targets.reshape(-1), call)
    per_row = targets.shape if reduction == "none" else loss.shape
    if not return_metrics:
        return loss.reshape(per_row)
    accuracy, predicted, z_losses = metrics
    return LossAndMetrics(loss.reshape(per_row), accuracy, predicted.reshape(targets.shape), z_losses.reshape(per_row))


@eager_only
def _sharded(h: Tensor, block: Tensor, targets: Tensor, call: Call) -> tuple[Tensor, ...]:
    if in_functorch():
        raise BadRequest("torch.func transforms do not support a sharded loss: it communicates with other ranks")
    return cast(tuple[Tensor, ...], _ShardedCrossEntropy.apply(h, block, targets, call))  # type: ignore[no-untyped-call]


class _ShardedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, block: Tensor, targets: Tensor, call: Call) -> tuple[Tensor, ...]:
        loss, metrics, ctx.held = _loss_by_chunks(h, block, targets, call, *ctx.needs_input_grad[:2])
        ctx.mark_non_differentiable(*metrics)
        return (loss, *metrics)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_of_metrics: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise BadRequest("a sharded loss does not support second derivatives (create_graph=True)")
        if ctx.held is None:
            raise BadRequest("a sharded loss supports one backward pass; compute it again for a second one")
        gradients, ctx.held = ctx.held, None
        if upstream.device.type != "cpu" or float(upstream) != 1.0:
            gradients = [None if g is None else g.mul_(upstream) for g in gradients]
        return (*gradients, None, None)


@torch.no_grad()
def _loss_by_chunks(
    h: Tensor, block: Tensor, targets: Tensor, call: Call, wants_h: bool, wants_block: bool
) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    """The loss; accuracy, predictions and z-loss if wanted; the requested gradients of h (times N) and of the block."""
    ranks = call.ranks
    products = product_dtype(h, block)
    wide = torch.float64 if products == torch.float64 else torch.float32
    wire = h.dtype if h.element_size() <= products.itemsize else products  # send the narrower dtype
    back = wide if wire == torch.float16 else wire  # fp16 has too little range for unscaled gradients

    keep = (targets != call.ignore_index).nonzero().squeeze(1)
    counts: list[int] = ranks.all_gather(torch.tensor([len(keep)], device=h.device)).tolist()
    most, total = max(counts), sum(counts)
    weight = 1.0 / max(total, 1) if call.reduction == "mean" else 1.0
    all_targets = _all_targets(targets[keep], most, call)  # [N, most]
    present = torch.arange(most, device=h.device) < torch.tensor(counts, device=h.device).unsqueeze(1)  # [N, most]
    if call.class_weights is not None:
        weights = call.class_weights.to(wide)
        if call.reduction == "mean":
            weights = targets_mean_to_1(weights, all_targets[present])
        call = replace(call, class_weights=weights)
    own = _padded(h[keep].to(wire), most)
    each = _each(most, total, h.shape[1], max(4, products.itemsize), call)

    own_losses = torch.zeros(h.shape[0], dtype=wide, device=h.device)
    own_metrics = RowMetrics.of(own_losses)
    loss_sum, z_loss_sum, correct = torch.zeros(3, dtype=wide, device=h.device).unbind()
    dh = torch.zeros(h.shape, dtype=wide if h.dtype == torch.float16 else h.dtype, device=h.device) if wants_h else None
    dW = _BlockGradient(block, wide, products, weight, chunks=-(-most // each)) if wants_block else None
    logits = torch.empty(ranks.size * min(each, most), block.shape[0], dtype=wide, device=h.device)
    with no_autocast(h.device.type):
        for top in range(0, most, each):
            rows = slice(top, min(top + each, most))
            here = keep[rows]
            part = ranks.all_gather(own[rows]).to(products)  # [N * rows, D]
            target, counted = all_targets[:, rows].reshape(-1), present[:, rows].reshape(-1)
            z = logits[: part.shape[0]]
            _logits_into(z, part, block)
            predicted = predictions(z, call) if call.with_metrics else None
            tokens = combined_(z, target, call)
            losses = torch.where(counted, tokens.losses, 0.0)
            loss_sum += losses.sum()
            own_losses[here] = losses.view(ranks.size, -1)[ranks.rank, : len(here)]
            if predicted is not None:
                correct += ((predicted == target) & counted).sum()
                z_loss_sum += torch.where(counted, tokens.z_losses, 0.0).sum()
                own_metrics.predictions[here] = predicted.view(ranks.size, -1)[ranks.rank, : len(here)]
                own_metrics.z_losses[here] = tokens.z_losses.view(ranks.size, -1)[ranks.rank, : len(here)]
            if dh is None and dW is None:
                continue
            to_gradient_(z, target, tokens, call)
            if min(counts) < rows.stop:
                z.mul_(counted.unsqueeze(1))
            if dW is not None:
                dW.add(z, part)
            if dh is not None:
                away = _hidden_gradient(z, block, products).mul_(weight * ranks.size)
                dh[here] = ranks.reduce_scatter(away.to(back))[: len(here)].to(dh.dtype)
    gradients = [dh, None if dW is None else dW.total()]
    per_row = call.reduction == "none"
    loss = own_losses if per_row else loss_sum * weight
    if not call.with_metrics:
        return loss, [], gradients
    z_loss = own_metrics.z_losses if per_row else z_loss_sum * weight
    return loss, [correct.float() / max(total, 1), own_metrics.predictions, z_loss], gradients


def _each(most: int, total: int, dim: int, itemsize: int, call: Call) -> int:
    """Tokens of each rank in a chunk: chunks of equal size, the same on every rank."""
    size = call.ranks.size
    chunk = call.chunk
    if chunk is None:  # a quarter of what one rank takes: more passes over V/N rows of dW, but the peak stays near 1/N
        one_rank = default_chunk(total, call.ranks.shard_size(call.vocab), dim, itemsize)
        chunk = max(one_rank // 4, _LEAST_EACH * size)
    chunks = -(-most // max(1, chunk // size))
    return -(-most // chunks) if chunks else 1


def _padded(rows: Tensor, count: int) -> Tensor:  # [C, ...] -> [count, ...]
    if rows.shape[0] == count:
        return rows
    return torch.cat([rows, rows.new_zeros(count - rows.shape[0], *rows.shape[1:])])


def _all_targets(own: Tensor, most: int, call: Call) -> Tensor:  # [C] -> [N, most]
    """All targets on every rank, so that a wrong one raises the same error everywhere and no rank hangs."""
    targets = call.ranks.all_gather(_padded(own.long(), most))
    if targets.device.type == "cpu" and targets.numel():
        low, high = (int(x) for x in targets.aminmax())
        if low < 0 or high >= call.vocab:
            wrong = low if low < 0 else high
            raise BadRequest(
                f"target {wrong} is out of range for W with {call.vocab} rows; "
                f"mark rows to skip with {call.ignore_index}"
            )
    return targets.view(call.ranks.size, most)


def _logits_into(z: Tensor, part: Tensor, block: Tensor) -> None:  # [C, V/N], [C, D], [V/N, D]
    if block.dtype == part.dtype == z.dtype:
        torch.mm(part, block.t(), out=z)
        return
    for v in row_blocks(block, part.dtype):
        z[:, v] = torch.mm(part, block[v].to(part.dtype).t())


def _hidden_gradient(z: Tensor, block: Tensor, products: torch.dtype) -> Tensor:  # [C, V/N], [V/N, D] -> [C, D]
    if block.dtype == products == z.dtype:
        return torch.mm(z, block)
    sum_ = z.new_zeros(z.shape[0], block.shape[1])
    for v in row_blocks(block, products):
        sum_ += torch.mm(z[:, v].to(products), block[v].to(products))
    return sum_


class _BlockGradient:
    """Accumulates the gradient of the local rows. In half precision the mean's 1/T is applied at the end."""

    def __init__(self, block: Tensor, wide: torch.dtype, products: torch.dtype, weight: float, chunks: int) -> None:
        self.products, self.weight = products, weight
        self.dtype = wide if block.dtype == torch.float16 else block.dtype
        self.direct = products == wide
        # Adding many chunks in bf16 would lose low bits each time.
        held = self.dtype if self.dtype == wide or (chunks == 1 and not self.direct) else wide
        make = torch.empty if chunks else torch.zeros
        self.sum = make(block.shape, dtype=held, device=block.device)
        self.fresh = True

    def add(self, z: Tensor, part: Tensor) -> None:  # [C, V/N], [C, D]
        if self.direct:
            torch.addmm(self.sum, z.t(), part * self.weight, beta=0.0 if self.fresh else 1.0, out=self.sum)
        else:
            for v in row_blocks(self.sum, self.products):
                product = torch.mm(z[:, v].t().to(self.products), part)
                if self.fresh:
                    self.sum[v] = product
                else:
                    self.sum[v] += product
        self.fresh = False

    def total(self) -> Tensor:
        if not self.direct and self.weight != 1.0:
            self.sum.mul_(self.weight)
        return self.sum.to(self.dtype)
