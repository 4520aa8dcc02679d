"""From a chunk of logits to its losses and the gradient of the logits, in place.

The softmax is one call of torch's kernel, into its own input: it is vectorised, computes each exponential once and
keeps a row in cache between its passes. The log-sum-exp is recovered from a probability: log p = logit - log-sum-exp.
Where the objective needs further passes (a softcap, label smoothing, metrics), rows are processed a few at a time, so
that the passes over them stay in cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tiebeam.nn.loss_options import Shape

_CACHE_BYTES = 2 << 20  # of logits per thread processed together, to stay in that thread's cache

LogitsAgain = Callable[[Tensor], Tensor]  # indices of rows [R] -> their logits [R, V], in a new tensor


@dataclass(frozen=True, slots=True)
class RowMetrics:
    """Buffers for what can be returned beside the loss; they are overwritten."""

    predictions: Tensor  # [N], int64: the row of W with the largest logit
    z_losses: Tensor  # [N]: the z-loss in each row's loss

    @classmethod
    def of(cls, losses: Tensor) -> RowMetrics:
        return cls(torch.full_like(losses, -1, dtype=torch.int64), torch.zeros_like(losses))

    def fill(self, found: RowMetrics, counts: Tensor, keep: Tensor | None) -> None:
        """Take the metrics that were computed: of the rows `keep`, or of all rows, of which some do not count."""
        if keep is None:
            self.predictions.copy_(torch.where(counts, found.predictions, -1))
            self.z_losses.copy_(torch.where(counts, found.z_losses, 0.0))
        else:
            self.predictions.index_copy_(0, keep, found.predictions)
            self.z_losses.index_copy_(0, keep, found.z_losses)

    def __getitem__(self, rows: slice) -> RowMetrics:
        return RowMetrics(self.predictions[rows], self.z_losses[rows])


@dataclass(frozen=True, slots=True)
class Objective:
    """What the loss of a row is, and whether its gradient is needed."""

    shape: Shape
    class_weights: Tensor | None  # [V]
    with_gradients: bool

    @property
    def is_plain(self) -> bool:
        """Whether the softmax is the only pass over the logits."""
        return self.shape == Shape() and self.class_weights is None


def rows_in_cache(z: Tensor) -> int:  # [C, V]
    """How many rows of z to process together."""
    if z.device.type != "cpu":
        return max(1, z.shape[0])
    return torch.get_num_threads() * max(1, _CACHE_BYTES // max(1, z.shape[1] * z.element_size()))


def to_gradient_(  # [C, V], [C] -> [C]
    z: Tensor, targets: Tensor, objective: Objective, again: LogitsAgain, metrics: RowMetrics | None = None
) -> Tensor:
    """The loss of each row. z is given scaled by `shape.slope`, and becomes dloss/dz up to the factor `shape.gain`.

    `again` computes rows of the given z once more, for the few whose log-sum-exp cannot be recovered.
    """
    step = max(1, z.shape[0]) if objective.is_plain and metrics is None else rows_in_cache(z)
    if step >= z.shape[0]:
        return _rows_to_gradient_(z, targets.unsqueeze(1), objective, again, metrics)
    losses = z.new_empty(z.shape[0])
    for top in range(0, z.shape[0], step):
        rows = slice(top, top + step)
        found = None if metrics is None else metrics[rows]
        losses[rows] = _rows_to_gradient_(
            z[rows], targets[rows].unsqueeze(1), objective, partial(_below, top, again), found
        )
    return losses


def _below(top: int, again: LogitsAgain, rows: Tensor) -> Tensor:  # [R] -> [R, V]
    """`again` for rows that are counted from `top`."""
    return again(rows + top)


def _rows_to_gradient_(  # [R, V], [R, 1] -> [R]
    z: Tensor, target: Tensor, objective: Objective, again: LogitsAgain, metrics: RowMetrics | None
) -> Tensor:
    """With q the target distribution, Q its sum and L the log-sum-exp: loss = Q L - q.u + z_loss L^2."""
    shape, weights = objective.shape, objective.class_weights
    smoothing = shape.label_smoothing
    if metrics is not None:
        torch.argmax(z, 1, out=metrics.predictions)
    if shape.capped:
        u = shape.curve_(z) * shape.amplitude

        def again(rows: Tensor) -> Tensor:
            return z[rows] * shape.amplitude
    else:
        u = z
    target_logit = u.gather(1, target).squeeze(1)
    mass: float | Tensor = 1.0
    at_target: float | Tensor = 1.0 - smoothing
    if weights is not None:
        at_target = at_target * weights[target.squeeze(1)]
        mass = at_target + smoothing * weights.mean()
    expected = at_target * target_logit
    if smoothing:
        expected = expected + smoothing * (u.mean(1) if weights is None else u.mv(weights) / z.shape[1])
    p = u
    log_sum = softmax_(p, target, target_logit, again)
    loss = mass * log_sum - expected
    scale = (target_logit - log_sum).exp_() if shape.scale_by_probability else None
    log_sum = log_sum + shape.offset
    if shape.z_loss:
        z_loss = shape.z_loss * log_sum.square()
        loss = loss + z_loss
        if metrics is not None:
            metrics.z_losses.copy_(z_loss if scale is None else z_loss * scale)
    if scale is not None:
        loss = loss * scale
    if not objective.with_gradients:
        return loss
    if shape.z_loss or weights is not None:
        p.mul_((mass + 2.0 * shape.z_loss * log_sum).unsqueeze(1))
    if smoothing:
        floor = smoothing / z.shape[1]
        p = p.sub_(floor) if weights is None else p.sub_(weights, alpha=floor)
    hit = torch.full_like(loss, at_target) if isinstance(at_target, float) else at_target
    p.scatter_add_(1, target, -hit.unsqueeze(1))
    if scale is not None:
        p.mul_(scale.unsqueeze(1))
    if shape.capped:
        shape.curve_backward_(p, z)
    return loss


def softmax_(  # [R, V], [R, 1], [R] -> [R]
    u: Tensor, target: Tensor, target_logit: Tensor, again: LogitsAgain
) -> Tensor:
    """Replace u by its softmax over the last dimension; the log-sum-exp of each row."""
    if u.device.type != "cpu":  # only the CPU kernel is known to allow its input as output
        largest = u.amax(1)
        total = u.sub_(largest.unsqueeze(1)).exp_().sum(1)
        u.div_(total.unsqueeze(1))
        return largest + total.log()
    torch.softmax(u, 1, out=u)
    at_target = u.gather(1, target).squeeze(1)
    log_sum = target_logit - at_target.log()
    # A probability that underflows has lost its digits.
    lost = (at_target < 2**10 * torch.finfo(u.dtype).tiny).nonzero().squeeze(1)
    if len(lost):
        log_sum[lost] = again(lost).logsumexp(1)
    return log_sum
