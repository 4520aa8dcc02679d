"""Split a tied embedding's gradient into the lookup's part and the head's part.

The lookup's part is a few rows that pass through TiedEmbedding's backward; everything else in `.grad` is the head's.
So the two are separated exactly, without a second backward pass or a second [V, D] buffer: the rows are recorded while
backward runs, and `.grad` minus them is the head's part, over any number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import torch
from torch import Tensor

from tiebeam.errors import BadRequest
from tiebeam.nn.provenance import Provenance
from tiebeam.nn.tied_embedding import TiedEmbedding

Rows = list[tuple[Tensor, Tensor]]  # ids [...], the gradients of their embeddings [..., D]
Gather = Callable[[Tensor, Rows], tuple[Tensor, Rows]]
_ROWS = 16384  # rows squared at a time, so that no second [V, D] buffer is needed


class gradient_provenance:  # noqa: N801  (used as a function: `with gradient_provenance(table) as watch`)
    """Measure where one step's gradient of a tied embedding comes from.

    Args:
        table: a tied `TiedEmbedding`, whose gradient is None when the block begins.
        gather: with several ranks `.grad` is an average over all of them; `gather` turns this rank's gradient and
            (ids, rows) into the full gradient and the rows of all ranks. Without it, use `no_sync()`.

    The block may hold any number of backward passes. It costs one pass over the gradient and the lookup's rows.

    >>> table = TiedEmbedding(vocab=11, dim=4)
    >>> ids = torch.tensor([1, 2, 3])
    >>> with gradient_provenance(table) as watch:
    ...     table.loss(table.embed(ids[:-1]), ids[1:]).backward()
    >>> 0 < watch.result.head_share < 1
    True
    """

    def __init__(self, table: TiedEmbedding, gather: Gather | None = None) -> None:
        if not table.tied:
            raise BadRequest("the table is untied; read the two gradients from .weight.grad and .head.grad")
        self._table, self._gather = table, gather
        self._result: Provenance | None = None

    @property
    def result(self) -> Provenance:
        if self._result is None:
            raise BadRequest("there is no result before the `with` block has ended without an error")
        return self._result

    def __enter__(self) -> gradient_provenance:
        if self._table.weight.grad is not None:
            raise BadRequest("the table already has a gradient; call zero_grad(set_to_none=True) before measuring")
        self._table._captured = []
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        captured, self._table._captured = self._table._captured, None
        if kind is not None:
            return
        total = self._table.weight.grad
        if total is None:
            raise BadRequest("no backward pass reached the table inside the `with` block")
        rows = captured or []
        total, rows = (total, rows) if self._gather is None else self._gather(total, rows)
        self._result = Provenance.of(*self._table.sum_over_ranks(squared_parts(total, rows)).tolist())


@torch.no_grad()
def squared_parts(total: Tensor, captured: Rows) -> Tensor:  # [V, D] -> [3]
    """The squared norms of the lookup's and the head's part, and their inner product."""
    wide = torch.float64
    squares = torch.cat([part.to(wide).square().sum(1) for part in torch.split(total, _ROWS)])  # [V]
    if not captured:
        return torch.stack([squares.new_zeros(()), squares.sum(), squares.new_zeros(())])
    ids = torch.cat([i.reshape(-1) for i, _ in captured])
    rows, where = torch.unique(ids, return_inverse=True)
    lookup = torch.zeros(len(rows), total.shape[1], dtype=wide, device=total.device)
    lookup.index_add_(0, where, torch.cat([x.reshape(-1, x.shape[-1]) for _, x in captured]).to(wide))
    head = total[rows].to(wide) - lookup
    squares[rows] = head.square().sum(1)
    return torch.stack([lookup.square().sum(), squares.sum(), (lookup * head).sum()])
