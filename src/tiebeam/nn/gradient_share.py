"""Where a tied table's gradient comes from: the lookup's part, the head's part, and the angle between them.

The lookup's part is a handful of rows that pass through our own backward; everything else in `.grad` is the head's.
So the two are told apart exactly without a second pass or a second table: the rows are collected while backward
runs, and `.grad` minus them is the head's part, whatever road it came by and over however many micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType

import torch
from torch import Tensor

from tiebeam.errors import BadRequest
from tiebeam.nn.tied_embedding import TiedEmbedding

Rows = list[tuple[Tensor, Tensor]]  # ids [...], the gradients of their embeddings [..., D]
Gather = Callable[[Tensor, Rows], tuple[Tensor, Rows]]
_ROWS = 16384  # table rows squared at a time, so that no second [V, D] is needed


@dataclass(frozen=True, slots=True)
class Provenance:
    """`head_share` is head / (head + lookup) of the norms; `cosine` is 0 where a part is 0."""

    lookup_norm: float
    head_norm: float
    cosine: float

    @classmethod
    def of(cls, sums: Tensor) -> Provenance:  # [3]
        """From the two squared norms and the inner product."""
        lookup, head, inner = sums.tolist()
        both = math.sqrt(lookup) * math.sqrt(head)
        return cls(math.sqrt(lookup), math.sqrt(head), inner / both if both else 0.0)

    @property
    def head_share(self) -> float:
        whole = self.lookup_norm + self.head_norm
        return self.head_norm / whole if whole else 0.0

    def to_dict(self) -> dict[str, float]:
        return {**asdict(self), "head_share": self.head_share}


class gradient_provenance:  # noqa: N801  (used as a function: `with gradient_provenance(table) as watch`)
    """Watch one step's gradient:

        with gradient_provenance(table) as watch:
            loss.backward()
        watch.result.head_share

    The block may hold any number of backward passes; the table's gradient is None when it begins. Costs one pass
    over the gradient and the lookup's rows. With several processes `.grad` is an average over all of them: `gather`
    then makes the whole gradient and everyone's (ids, rows) out of this process's own; without it, use `no_sync()`.
    """

    def __init__(self, table: TiedEmbedding, gather: Gather | None = None) -> None:
        if not table.tied:
            raise BadRequest("the table is untied: each end has its own gradient, read .weight.grad and .head.grad")
        self._table, self._gather = table, gather
        self._result: Provenance | None = None

    @property
    def result(self) -> Provenance:
        if self._result is None:
            raise BadRequest("there is no result before the `with` block has ended well")
        return self._result

    def __enter__(self) -> gradient_provenance:
        if self._table.weight.grad is not None:
            raise BadRequest("the table already has a gradient; call zero_grad(set_to_none=True) before watching")
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
        self._result = Provenance.of(self._table.over_ranks(_sums(total, rows)))


@torch.no_grad()
def _sums(total: Tensor, captured: Rows) -> Tensor:  # [V, D] -> [3]
    """The two squared norms and the inner product."""
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
