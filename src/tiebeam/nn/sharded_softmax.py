"""The softmax over a vocabulary whose rows are on several ranks: losses, predictions and the gradient of the logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiebeam.nn.collectives import RankGroup
from tiebeam.nn.logit_gradient import rows_in_cache
from tiebeam.nn.loss_options import Reduction, Shape


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a call that get no gradient."""

    shape: Shape
    vocab: int
    ranks: RankGroup
    reduction: Reduction
    chunk: int | None
    ignore_index: int
    class_weights: Tensor | None  # [V]
    with_metrics: bool


@dataclass(frozen=True, slots=True)
class Tokens:
    """What every rank knows of the tokens of a chunk after the all-reduces, each [C]; q is the target distribution."""

    losses: Tensor
    z_losses: Tensor
    log_sum: Tensor  # over the full vocabulary, without the offset of the softcap
    largest: Tensor  # among the local logits
    at_target: Tensor  # q at the target, without the smoothing's share
    mass: Tensor  # the sum of q
    scale: Tensor  # factor of loss and gradient


def combined_(z: Tensor, target: Tensor, call: Call) -> Tokens:  # [C, V/N], [C]
    """Combine the ranks' logits. z becomes exp(z - largest), or curve(slope z) when the logits are capped."""
    shape, weights, wide = call.shape, call.class_weights, z.dtype
    block = call.ranks.shard(call.vocab)
    largest = torch.full(z.shape[:1], -torch.inf, dtype=wide, device=z.device)
    sums = torch.zeros(3 if shape.label_smoothing else 2, z.shape[0], dtype=wide, device=z.device)
    step = rows_in_cache(z) if z.shape[1] else max(1, z.shape[0])
    for top in range(0, z.shape[0] if z.shape[1] else 0, step):
        rows = slice(top, top + step)
        u = z[rows]
        if shape.capped:
            u = shape.curve_(u.mul_(shape.slope)) * shape.amplitude
        at, owned = _local(target[rows], block)
        sums[1, rows] = torch.where(owned, u.gather(1, at.unsqueeze(1)).squeeze(1), 0.0)
        if shape.label_smoothing:
            sums[2, rows] = u.sum(1) if weights is None else u.mv(weights[block])
        largest[rows] = u.amax(1)
        sums[0, rows] = u.sub_(largest[rows].unsqueeze(1)).exp_().sum(1)
    top_logit = call.ranks.all_reduce_max_(largest.clone())
    sums[0] *= (largest - top_logit).exp_()
    call.ranks.all_reduce_(sums)
    log_sum = top_logit + sums[0].log()
    at_target = torch.full_like(log_sum, 1.0 - shape.label_smoothing)
    mass = torch.ones_like(log_sum)
    if weights is not None:
        at_target *= weights[target]
        mass = at_target + shape.label_smoothing * weights.mean()
    expected = at_target * sums[1]
    if shape.label_smoothing:
        expected += (shape.label_smoothing / call.vocab) * sums[2]
    scale = (sums[1] - log_sum).exp_() if shape.scale_by_probability else torch.ones_like(log_sum)
    z_losses = scale * shape.z_loss * (log_sum + shape.offset).square()
    losses = scale * (mass * log_sum - expected) + z_losses
    return Tokens(losses, z_losses, log_sum, largest, at_target, mass, scale)


def predictions(z: Tensor, call: Call) -> Tensor:  # [C, V/N] -> [C]
    """The first row of W with the largest logit, among the rows of all ranks."""
    largest = torch.full(z.shape[:1], -torch.inf, dtype=z.dtype, device=z.device)
    at = torch.zeros_like(largest, dtype=torch.int64)
    if z.shape[1]:
        largest, at = z.max(1)
    everywhere = call.ranks.all_reduce_max_(largest.clone())
    here = torch.where(largest == everywhere, at + call.ranks.shard(call.vocab).start, call.vocab - 1)
    return -call.ranks.all_reduce_max_(-here)  # the smallest


def to_gradient_(z: Tensor, target: Tensor, tokens: Tokens, call: Call) -> None:
    """Turn the z that `combined_` left into dloss/dz."""
    if not z.shape[1]:
        return
    shape, block = call.shape, call.ranks.shard(call.vocab)
    weights = None if call.class_weights is None else call.class_weights[block]
    gain = tokens.scale * (shape.slope * shape.amplitude if shape.capped else 1.0)
    lift = gain * (tokens.mass + 2.0 * shape.z_loss * (tokens.log_sum + shape.offset))
    if not shape.capped:
        lift *= (tokens.largest - tokens.log_sum).exp_()
    step = rows_in_cache(z)
    for top in range(0, z.shape[0], step):
        rows = slice(top, top + step)
        p = z[rows]
        if shape.capped:
            p = (p * shape.amplitude).sub_(tokens.log_sum[rows].unsqueeze(1)).exp_()
        p.mul_(lift[rows].unsqueeze(1))
        if shape.label_smoothing:
            floor = (gain[rows] * (shape.label_smoothing / call.vocab)).unsqueeze(1)
            p = p.sub_(floor) if weights is None else p.addcmul_(floor, weights, value=-1.0)
        at, owned = _local(target[rows], block)
        hit = torch.where(owned, -gain[rows] * tokens.at_target[rows], 0.0)
        p.scatter_add_(1, at.unsqueeze(1), hit.unsqueeze(1))
        if shape.capped:
            shape.curve_backward_(p, z[rows])


def _local(target: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """The targets as local rows, and whether this rank holds them; the others point at row 0 and are masked."""
    owned = (target >= block.start) & (target < block.stop)
    return torch.where(owned, target - block.start, 0), owned
