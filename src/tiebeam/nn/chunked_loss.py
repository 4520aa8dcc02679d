"""The arithmetic of the fused tied loss: losses and gradients in one loop over chunks of tokens, without autograd.

The logits of a chunk live in one [chunk, V] buffer. It is turned in place into the gradient of the logits, used for
both products (dh = G W and dW += Gᵀ h), and overwritten by the next chunk. The softmax is never divided by its sum: G
is kept as `sum * (p - target)` and the sum goes into the per-row factors of the small [chunk, D] sides, which saves a
pass over the wide buffer. Rows are processed a few at a time so that the remaining passes stay in cache.

There are two loops: `_direct`, where the table already has the dtype of the products, and `_blocked`, where it does not
(bf16 tables, autocast). `_blocked` casts the table by blocks of rows and accumulates in float32, so that no second
[V, D] copy of the table exists.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tiebeam.nn.loss_options import Shape

_CACHE_BYTES = 2 << 20  # of logits per thread processed together, to stay in that thread's cache
_BLOCK_ROWS = 8192  # vocabulary rows cast at a time in the blocked loop
_LARGE_TABLE = 10**9  # bytes; from this size a chunk of logits is limited to a fraction of the table


def default_chunk(tokens: int, vocab: int, dim: int, itemsize: int = 4) -> int:
    """Tokens per chunk: equal chunks of 512 to 1024, fewer for a table of a gigabyte or more.

    Every chunk reads and writes the full dW once, so small chunks cost time (a few percent at 512, a fifth at 128)
    and large ones cost memory. For large tables a chunk of logits may take 0.15 of the bytes of the table.
    """
    if vocab * dim * itemsize >= _LARGE_TABLE:
        most = max(256, min(1024, int(0.15 * dim)))
    else:
        most = max(512, min(1024, (128 << 20) // (itemsize * max(vocab, 1))))
    chunks = -(-tokens // most)
    return -(-tokens // chunks) if chunks else most


def product_dtype(h: Tensor, W: Tensor) -> torch.dtype:
    """The dtype of the three matrix products: autocast's, else the wider of the two inputs.

    On a CPU without bf16 instructions a bf16 product is several times slower than float32 and less exact, so the
    products run in float32 there.
    """
    dtype = torch.promote_types(h.dtype, W.dtype)
    device = h.device.type
    if dtype != torch.float64 and torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    if device == "cpu" and (dtype == torch.float16 or (dtype == torch.bfloat16 and not _cpu_has_bf16())):
        return torch.float32
    return dtype


@cache
def _cpu_has_bf16() -> bool:
    probe = getattr(torch.cpu, "get_capabilities", None)
    found = probe() if probe is not None else {}
    return any(bool(found.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16"))


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
class Work:
    """One call: inputs, options, and a buffer for each gradient that is needed.

    Every target is a row of W; a row of h that does not count has weight 0. The gradients are those of
    sum(row_weight * loss). The buffers are overwritten.
    """

    h: Tensor  # [N, D]
    W: Tensor  # [V, D]
    targets: Tensor  # [N], int64
    row_weight: Tensor  # [N], float32, or float64 when the products are
    bias: Tensor | None  # [V], like row_weight
    shape: Shape
    chunk: int
    products: torch.dtype
    dh: Tensor | None = None
    dW: Tensor | None = None  # noqa: N815
    dbias: Tensor | None = None
    class_weights: Tensor | None = None  # [V], like row_weight
    metrics: RowMetrics | None = None

    @property
    def with_gradients(self) -> bool:
        return self.dh is not None or self.dW is not None or self.dbias is not None


def losses_and_gradients(work: Work) -> Tensor:  # -> [N]
    """The loss of each row; the gradients are written into the buffers of `work`."""
    if work.h.shape[0] == 0:
        for gradient in (work.dh, work.dW, work.dbias):
            if gradient is not None:
                gradient.zero_()
        return work.row_weight.new_zeros(0)
    with no_autocast(work.h.device.type):
        return _direct(work) if _is_direct(work.W, work.products) else _blocked(work)


def no_autocast(device: str) -> AbstractContextManager[Any]:
    """Disable autocast, because the dtypes of the products are already chosen."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def row_blocks(W: Tensor, products: torch.dtype) -> list[slice]:
    """The rows of W to multiply by at a time: all of them, or as many as may be cast at once."""
    if _is_direct(W, products):
        return [slice(0, W.shape[0])]
    return [slice(v, v + _BLOCK_ROWS) for v in range(0, W.shape[0], _BLOCK_ROWS)]


def rows_in_cache(z: Tensor) -> int:  # [C, V]
    """How many rows of z to process together."""
    if z.device.type != "cpu":
        return max(1, z.shape[0])
    return torch.get_num_threads() * max(1, _CACHE_BYTES // max(1, z.shape[1] * z.element_size()))


def _is_direct(W: Tensor, products: torch.dtype) -> bool:
    return W.dtype == products and products in (torch.float32, torch.float64)


def _direct(work: Work) -> Tensor:  # -> [N]
    W, shape, dh, dW, dbias = work.W, work.shape, work.dh, work.dW, work.dbias
    tokens = work.h.shape[0]
    losses = work.row_weight.new_empty(tokens)
    logits = W.new_empty(min(work.chunk, tokens), W.shape[0])
    if dbias is not None:
        dbias.zero_()
    for start in range(0, tokens, work.chunk):
        rows = slice(start, start + work.chunk)
        part = work.h[rows].to(work.products)
        z = logits[: part.shape[0]]
        if work.bias is None:
            torch.mm(part * shape.slope if shape.capped else part, W.t(), out=z)
        else:
            torch.addmm(work.bias, part, W.t(), beta=shape.slope, alpha=shape.slope, out=z)
        losses[rows], factor = _to_gradient_(z, rows, work)
        factor = (work.row_weight[rows] * factor).unsqueeze(1)  # [chunk, 1]
        if dh is not None:
            if dh.dtype == work.products:
                torch.mm(z, W, out=dh[rows]).mul_(factor)
            else:
                dh[rows] = torch.mm(z, W).mul_(factor)
        if dW is not None:
            torch.addmm(dW, z.t(), part * factor, beta=0.0 if start == 0 else 1.0, out=dW)
        if dbias is not None:
            dbias.addmv_(z.t(), factor.squeeze(1))
    return losses


def _blocked(work: Work) -> Tensor:  # -> [N]
    W, shape, dh, dW, dbias = work.W, work.shape, work.dh, work.dW, work.dbias
    tokens, wide = work.h.shape[0], work.row_weight.dtype
    losses = work.row_weight.new_empty(tokens)
    logits = torch.empty(min(work.chunk, tokens), W.shape[0], dtype=wide, device=W.device)
    blocks = row_blocks(W, work.products)
    # A mean's 1/N would underflow in a half-precision product: rows get relative weights, and the sum is scaled after.
    top = work.row_weight.abs().amax().clamp_min(torch.finfo(wide).tiny)
    relative = (work.row_weight / top).unsqueeze(1)  # [N, 1]
    dW_sum = dW
    if dW is not None and dW.dtype != wide and work.chunk < tokens:
        dW_sum = torch.empty_like(dW, dtype=wide)  # adding chunks in bf16 would lose low bits each time
    if dbias is not None:
        dbias.zero_()
    for start in range(0, tokens, work.chunk):
        rows = slice(start, start + work.chunk)
        part = work.h[rows].to(work.products)
        z = logits[: part.shape[0]]
        for block in blocks:
            z[:, block] = torch.mm(part, W[block].to(work.products).t())
        if work.bias is not None:
            z.add_(work.bias)
        if shape.capped:
            z.mul_(shape.slope)
        losses[rows], factor = _to_gradient_(z, rows, work)
        if not work.with_gradients:
            continue
        z.mul_(factor.unsqueeze(1))  # half precision has too little range for the undivided sums
        weighted = (part * relative[rows]).to(work.products)
        dh_part = z.new_zeros(part.shape) if dh is not None else None
        for block in blocks:
            g = z[:, block].to(work.products)
            if dh_part is not None:
                dh_part.add_(torch.mm(g, W[block].to(work.products)))
            if dW_sum is not None:
                product = torch.mm(g.t(), weighted).to(wide).mul_(top)
                if start == 0:
                    dW_sum[block] = product
                else:
                    dW_sum[block] += product
        if dh is not None and dh_part is not None:
            dh[rows] = dh_part.mul_(work.row_weight[rows].unsqueeze(1))
        if dbias is not None:
            dbias.addmv_(z.t(), work.row_weight[rows])
    if dW is not None and dW_sum is not None and dW_sum is not dW:
        dW.copy_(dW_sum)
    return losses


def _to_gradient_(z: Tensor, chunk: slice, work: Work) -> tuple[Tensor, Tensor]:  # [C, V] -> [C], [C]
    """The loss of each row, and the factor that turns the new z into dloss/dz. z is given scaled by `shape.slope`."""
    losses, factors = z.new_empty(z.shape[0]), z.new_empty(z.shape[0])
    targets = work.targets[chunk].unsqueeze(1)
    metrics = None if work.metrics is None else work.metrics[chunk]
    step = rows_in_cache(z)
    for top in range(0, z.shape[0], step):
        rows = slice(top, top + step)
        losses[rows], factors[rows] = _rows_to_gradient_(
            z[rows], targets[rows], work, None if metrics is None else metrics[rows]
        )
    return losses, factors


def _rows_to_gradient_(  # [R, V], [R, 1] -> [R], [R]
    z: Tensor, target: Tensor, work: Work, metrics: RowMetrics | None
) -> tuple[Tensor, Tensor]:
    """With q the target distribution, Q its sum and L the log-sum-exp: loss = Q L - q.u + z_loss L^2."""
    shape, weights = work.shape, work.class_weights
    smoothing = shape.label_smoothing
    if metrics is not None:
        torch.argmax(z, 1, out=metrics.predictions)
    u = shape.curve_(z) * shape.amplitude if shape.capped else z
    target_logit = u.gather(1, target).squeeze(1)
    mass: float | Tensor = 1.0
    at_target: float | Tensor = 1.0 - smoothing
    if weights is not None:
        at_target = at_target * weights[target.squeeze(1)]
        mass = at_target + smoothing * weights.mean()
    expected = at_target * target_logit
    if smoothing:
        expected = expected + smoothing * (u.mean(1) if weights is None else u.mv(weights) / z.shape[1])
    largest = u.amax(1, keepdim=True)
    e = u.sub_(largest).exp_()
    total = e.sum(1)
    log_sum = largest.squeeze(1) + total.log()
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
    if not work.with_gradients:
        return loss, total
    if shape.z_loss or weights is not None:
        e.mul_((mass + 2.0 * shape.z_loss * log_sum).unsqueeze(1))
    if smoothing:
        floor = (total * (smoothing / z.shape[1])).unsqueeze(1)
        e = e.sub_(floor) if weights is None else e.addcmul_(floor, weights, value=-1.0)
    e.scatter_add_(1, target, (total * -at_target).unsqueeze(1))
    factor = total.reciprocal() if scale is None else scale / total
    if not shape.capped:
        return loss, factor
    shape.curve_backward_(e, z)
    return loss, factor * (shape.slope * shape.amplitude)
