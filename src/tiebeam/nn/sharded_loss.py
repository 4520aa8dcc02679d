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

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from tiebeam.errors import BadRequest
from tiebeam.nn.call_mode import eager_only, in_functorch
from tiebeam.nn.chunked_loss import Shape, default_chunk, no_autocast, product_dtype, row_blocks, rows_in_cache
from tiebeam.nn.collectives import RankGroup
from tiebeam.nn.loss import Reduction, SoftcapKind, check_inputs, loss_shape

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
    chunk: int | None = None,
) -> Tensor:
    """`tied_cross_entropy` over the tokens of all ranks; `block` is this rank's rows of W (`ranks.shard(vocab)`).

    "mean" and "sum" are over the tokens of all ranks that count, with the same value on every rank. "none" gives the
    losses of this rank's tokens, without gradients. `chunk` counts the tokens of all ranks together.

    The gradient of `block` is that of the returned loss. The gradient of `h` is N times that, for N ranks, because
    the layers behind it are data-parallel and DDP and FSDP divide the sum of their gradients by N.
    """
    if reduction not in ("mean", "sum", "none"):
        raise BadRequest(f"reduction={reduction!r} is not supported; use 'mean', 'sum' or 'none'")
    check_inputs(h, block, targets, None, chunk)
    with_gradients = torch.is_grad_enabled() and (h.requires_grad or block.requires_grad)
    if with_gradients and reduction == "none":
        raise BadRequest("reduction='none' over a sharded vocabulary has no gradients; call it under torch.no_grad()")
    call = _Call(
        loss_shape(softcap, softcap_kind, z_loss, label_smoothing), vocab, ranks, reduction, chunk, ignore_index
    )
    losses = _sharded(h.reshape(-1, h.shape[-1]), block, targets.reshape(-1), call)
    return losses.reshape(targets.shape) if reduction == "none" else losses


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of a call that are not tensors."""

    shape: Shape
    vocab: int
    ranks: RankGroup
    reduction: Reduction
    chunk: int | None
    ignore_index: int


@eager_only
def _sharded(h: Tensor, block: Tensor, targets: Tensor, call: _Call) -> Tensor:
    if in_functorch():
        raise BadRequest("torch.func transforms do not support a sharded loss: it communicates with other ranks")
    return cast(Tensor, _ShardedCrossEntropy.apply(h, block, targets, call))  # type: ignore[no-untyped-call]


class _ShardedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, block: Tensor, targets: Tensor, call: _Call) -> Tensor:
        result, ctx.held = _loss_by_chunks(h, block, targets, call, ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        return result

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
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
    h: Tensor, block: Tensor, targets: Tensor, call: _Call, wants_h: bool, wants_block: bool
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss, and the requested gradients of h (times N) and of the block."""
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
    own = _padded(h[keep].to(wire), most)
    each = _each(most, total, h.shape[1], max(4, products.itemsize), call)

    own_losses = torch.zeros(h.shape[0] if call.reduction == "none" else 0, dtype=wide, device=h.device)
    loss_sum = torch.zeros((), dtype=wide, device=h.device)
    dh = torch.zeros(h.shape, dtype=wide if h.dtype == torch.float16 else h.dtype, device=h.device) if wants_h else None
    dW = _BlockGradient(block, wide, products, weight, chunks=-(-most // each)) if wants_block else None
    logits = torch.empty(ranks.size * min(each, most), block.shape[0], dtype=wide, device=h.device)
    with no_autocast(h.device.type):
        for top in range(0, most, each):
            rows = slice(top, min(top + each, most))
            here = keep[rows]
            part = ranks.all_gather(own[rows]).to(products)  # [N * rows, D]
            target = all_targets[:, rows].reshape(-1) - ranks.shard(call.vocab).start
            z = logits[: part.shape[0]]
            _logits_into(z, part, block)
            losses, log_sum, largest = _combined_(z, target, call)
            losses = torch.where(present[:, rows].reshape(-1), losses, 0.0)
            loss_sum += losses.sum()
            if call.reduction == "none":
                own_losses[here] = losses.view(ranks.size, -1)[ranks.rank, : len(here)]
            if dh is None and dW is None:
                continue
            _to_gradient_(z, target, log_sum, largest, call)
            if min(counts) < rows.stop:
                z.mul_(present[:, rows].reshape(-1, 1))
            if dW is not None:
                dW.add(z, part)
            if dh is not None:
                away = _hidden_gradient(z, block, products).mul_(weight * ranks.size)
                dh[here] = ranks.reduce_scatter(away.to(back))[: len(here)].to(dh.dtype)
    result = own_losses if call.reduction == "none" else loss_sum * weight
    return result, [dh, None if dW is None else dW.total()]


def _each(most: int, total: int, dim: int, itemsize: int, call: _Call) -> int:
    """Tokens of each rank in a chunk: chunks of equal size, the same on every rank."""
    size = call.ranks.size
    chunk = call.chunk
    if chunk is None:
        chunk = max(default_chunk(total, call.ranks.shard_size(call.vocab), dim, itemsize), _LEAST_EACH * size)
    chunks = -(-most // max(1, chunk // size))
    return -(-most // chunks) if chunks else 1


def _padded(rows: Tensor, count: int) -> Tensor:  # [C, ...] -> [count, ...]
    if rows.shape[0] == count:
        return rows
    return torch.cat([rows, rows.new_zeros(count - rows.shape[0], *rows.shape[1:])])


def _all_targets(own: Tensor, most: int, call: _Call) -> Tensor:  # [C] -> [N, most]
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


def _combined_(  # [C, V/N], [C] -> [C], [C], [C]
    z: Tensor, target: Tensor, call: _Call
) -> tuple[Tensor, Tensor, Tensor]:
    """Each token's loss and log-sum-exp over the full vocabulary, and its largest local logit.

    z becomes exp(z - largest), or sigmoid(slope z) when the logits are capped.
    """
    shape, wide = call.shape, z.dtype
    largest = torch.full(z.shape[:1], -torch.inf, dtype=wide, device=z.device)
    sums = torch.zeros(3 if shape.label_smoothing else 2, z.shape[0], dtype=wide, device=z.device)
    step = rows_in_cache(z) if z.shape[1] else max(1, z.shape[0])
    for top in range(0, z.shape[0] if z.shape[1] else 0, step):
        rows = slice(top, top + step)
        u = z[rows]
        if shape.capped:
            u = u.mul_(shape.slope).sigmoid_() * shape.amplitude
        at, owned = _local(target[rows], z.shape[1])
        sums[1, rows] = torch.where(owned, u.gather(1, at.unsqueeze(1)).squeeze(1), 0.0)
        if shape.label_smoothing:
            sums[2, rows] = u.sum(1)
        largest[rows] = u.amax(1)
        sums[0, rows] = u.sub_(largest[rows].unsqueeze(1)).exp_().sum(1)
    top_logit = call.ranks.all_reduce_max_(largest.clone())
    sums[0] *= (largest - top_logit).exp_()
    call.ranks.all_reduce_(sums)
    log_sum = top_logit + sums[0].log()
    target_logit = sums[1]
    if shape.label_smoothing:
        target_logit = (1.0 - shape.label_smoothing) * target_logit + (shape.label_smoothing / call.vocab) * sums[2]
    losses = log_sum - target_logit
    if shape.z_loss:
        losses += shape.z_loss * (log_sum + shape.offset).square()
    return losses, log_sum, largest


def _to_gradient_(z: Tensor, target: Tensor, log_sum: Tensor, largest: Tensor, call: _Call) -> None:
    """Turn the z that `_combined_` left into dloss/dz."""
    if not z.shape[1]:
        return
    shape = call.shape
    gain = shape.slope * shape.amplitude if shape.capped else 1.0
    lift = torch.full_like(log_sum, gain)
    if shape.z_loss:
        lift *= 1.0 + 2.0 * shape.z_loss * (log_sum + shape.offset)
    if not shape.capped:
        lift *= (largest - log_sum).exp_()
    step = rows_in_cache(z)
    for top in range(0, z.shape[0], step):
        rows = slice(top, top + step)
        p = z[rows]
        if shape.capped:
            p = (p * shape.amplitude).sub_(log_sum[rows].unsqueeze(1)).exp_()
        p.mul_(lift[rows].unsqueeze(1))
        if shape.label_smoothing:
            p.sub_(gain * shape.label_smoothing / call.vocab)
        at, owned = _local(target[rows], z.shape[1])
        hit = owned.to(p.dtype) * (gain * (shape.label_smoothing - 1.0))
        p.scatter_add_(1, at.unsqueeze(1), hit.unsqueeze(1))
        if shape.capped:
            torch.ops.aten.sigmoid_backward.grad_input(p, z[rows], grad_input=z[rows])


def _local(target: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The targets as local rows, and whether this rank holds them; the others point at row 0 and are masked."""
    owned = (target >= 0) & (target < rows)
    return torch.where(owned, target, 0), owned
