"""The arithmetic of the fused tied loss: losses and gradients in one loop over chunks of tokens, without autograd.

The logits of a chunk live in one [chunk, V] buffer. It is turned in place into the gradient of the logits
(logit_gradient.py), used for both products (dh = G W and dW += Gᵀ h), and overwritten by the next chunk. A weight that
all rows have in common is a factor of the products and costs no pass.

There are two loops: `_direct`, where the table already has the dtype of the products, and `_blocked`, where it does not
(bf16 tables, autocast). `_blocked` casts the table by blocks of rows and accumulates in float32, so that no second
[V, D] copy of the table exists.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from tiebeam.nn.logit_gradient import Objective, RowMetrics, to_gradient_
from tiebeam.nn.loss_buffers import LossBuffers, fresh
from tiebeam.nn.loss_options import Shape

_BLOCK_ROWS = 8192  # vocabulary rows cast at a time in the blocked loop
_LARGE_TABLE = 10**9  # bytes; from this size a chunk of logits is limited to a fraction of the table


def default_chunk(tokens: int, vocab: int, dim: int, itemsize: int = 4) -> int:
    """Tokens per chunk: equal chunks of 512 to 1024, more for a small vocabulary, fewer for a table of a gigabyte.

    Every chunk reads and writes the full dW once, so small chunks cost time and large ones cost memory. A chunk of
    16 MB costs little memory, whatever the vocabulary. For large tables a chunk may take 0.15 of the table's bytes.
    """
    row = itemsize * max(vocab, 1)
    if vocab * dim * itemsize >= _LARGE_TABLE:
        most = max(256, min(1024, int(0.15 * dim)))
    else:
        most = max(512, min(1024, (128 << 20) // row), (16 << 20) // row)
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
    buffers: LossBuffers | None = None

    @property
    def objective(self) -> Objective:
        return Objective(self.shape, self.class_weights, self.with_gradients)

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


def _is_direct(W: Tensor, products: torch.dtype) -> bool:
    return W.dtype == products and products in (torch.float32, torch.float64)


def _direct(work: Work) -> Tensor:  # -> [N]
    W, shape, dh, dW, dbias = work.W, work.shape, work.dh, work.dW, work.dbias
    tokens = work.h.shape[0]
    losses = work.row_weight.new_empty(tokens)
    logits = _logits_buffer(work, W.dtype)
    common, objective = _common_weight(work.row_weight), work.objective
    if dbias is not None:
        dbias.zero_()
    for start in range(0, tokens, work.chunk):
        rows = slice(start, start + work.chunk)
        part = work.h[rows].to(work.products)
        z = logits[: part.shape[0]]
        _logits_into(z, part, work)
        losses[rows] = to_gradient_(
            z, work.targets[rows], objective, partial(_logits_of, part, work),
            None if work.metrics is None else work.metrics[rows],
        )  # fmt: skip
        weight, factor = work.row_weight[rows].unsqueeze(1), shape.gain * (1.0 if common is None else common)
        if dh is not None:
            same = dh.dtype == work.products
            product = dh[rows] if same else torch.empty_like(part)
            torch.addmm(product, z, W, beta=0.0, alpha=factor, out=product)
            if common is None:
                product.mul_(weight)
            if not same:
                dh[rows] = product
        if dW is not None:
            weighted = part if common is not None else part * weight
            torch.addmm(dW, z.t(), weighted, beta=0.0 if start == 0 else 1.0, alpha=factor, out=dW)
        if dbias is not None:
            dbias.addmv_(z.t(), work.row_weight[rows], alpha=shape.gain)
    return losses


def _logits_buffer(work: Work, dtype: torch.dtype) -> Tensor:  # -> [chunk, V]
    take = fresh if work.buffers is None else work.buffers.take
    return take((min(work.chunk, work.h.shape[0]), work.W.shape[0]), dtype, work.W.device)


def _logits_into(z: Tensor, part: Tensor, work: Work) -> None:  # [C, V], [C, D]
    W, slope = work.W, work.shape.slope
    if work.bias is None:
        torch.addmm(z, part, W.t(), beta=0.0, alpha=slope, out=z)
    else:
        torch.addmm(work.bias, part, W.t(), beta=slope, alpha=slope, out=z)


def _logits_of(part: Tensor, work: Work, rows: Tensor) -> Tensor:  # [C, D], [R] -> [R, V]
    chosen = part[rows]
    z = chosen.new_empty(len(chosen), work.W.shape[0])
    _logits_into(z, chosen, work)
    return z


def _common_weight(weights: Tensor) -> float | None:  # [N]
    """The weight of all rows if they have the same. On other devices the answer would need a synchronization."""
    if weights.device.type != "cpu":
        return None
    low, high = (float(x) for x in weights.aminmax())
    return low if low == high else None


def _blocked(work: Work) -> Tensor:  # -> [N]
    W, shape, dh, dW, dbias = work.W, work.shape, work.dh, work.dW, work.dbias
    tokens, wide = work.h.shape[0], work.row_weight.dtype
    losses = work.row_weight.new_empty(tokens)
    logits = _logits_buffer(work, wide)
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
        _blocked_logits_into(z, part, work)
        losses[rows] = to_gradient_(
            z, work.targets[rows], work.objective, partial(_blocked_logits_of, part, work),
            None if work.metrics is None else work.metrics[rows],
        )  # fmt: skip
        if not work.with_gradients:
            continue
        weighted = (part * relative[rows]).to(work.products)
        dh_part = z.new_zeros(part.shape) if dh is not None else None
        for block in blocks:
            g = z[:, block].to(work.products)
            if dh_part is not None:
                dh_part.add_(torch.mm(g, W[block].to(work.products)))
            if dW_sum is not None:
                product = torch.mm(g.t(), weighted).to(wide).mul_(top * shape.gain)
                if start == 0:
                    dW_sum[block] = product
                else:
                    dW_sum[block] += product
        if dh is not None and dh_part is not None:
            dh[rows] = dh_part.mul_(work.row_weight[rows].unsqueeze(1) * shape.gain)
        if dbias is not None:
            dbias.addmv_(z.t(), work.row_weight[rows], alpha=shape.gain)
    if dW is not None and dW_sum is not None and dW_sum is not dW:
        dW.copy_(dW_sum)
    return losses


def _blocked_logits_into(z: Tensor, part: Tensor, work: Work) -> None:  # [C, V], [C, D]
    for block in row_blocks(work.W, work.products):
        z[:, block] = torch.mm(part, work.W[block].to(work.products).t())
    if work.bias is not None:
        z.add_(work.bias)
    if work.shape.capped:
        z.mul_(work.shape.slope)


def _blocked_logits_of(part: Tensor, work: Work, rows: Tensor) -> Tensor:  # [C, D], [R] -> [R, V]
    chosen = part[rows]
    z = work.row_weight.new_empty(len(chosen), work.W.shape[0])
    _blocked_logits_into(z, chosen, work)
    return z
