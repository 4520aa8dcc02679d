"""A tied embedding with one buffer for its gradient.

A tied embedding gets its gradient from two sides: a few rows from the lookup, every row from the head. Autograd would
allocate one [V, D] buffer for each and a third for the sum. Here the lookup returns an alias of the table besides the
embeddings, and the head multiplies by that alias. For autograd the alias is an output of the lookup, so the head's
dense gradient arrives at the lookup's backward, which adds its rows into it and passes it on: one buffer, in an order
that the engine guarantees. Nothing touches `.grad`, and hooks see one gradient. A head that finds no alias (used before
the lookup, a second time, or after the table was replaced) multiplies by the table itself and gets the same gradient
through ordinary autograd.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebeam.errors import BadRequest
from tiebeam.nn.call_mode import eager_only, in_functorch
from tiebeam.nn.gpt_config import tied_init_std
from tiebeam.nn.loss import softcapped, tied_cross_entropy
from tiebeam.nn.loss_options import SoftcapKind
from tiebeam.surgery.split_parameter import split_parameter

if TYPE_CHECKING:
    from tiebeam.surgery.split_parameter import Optimizers


class TiedEmbedding(nn.Module):
    """Embedding and LM head in one parameter, `weight` [vocab, dim].

    Args:
        vocab: number of tokens.
        dim: width.
        init_std: standard deviation of the initial weights; by default `tied_init_std(dim)`. The N(0, 1) of
            nn.Embedding would be far too large for a head.
        softcap: cap of the logits, in `logits` and `loss`; None for no cap. See `tied_cross_entropy`.
        input_grad_scale: factor on the lookup's part of the gradient.
        bridge: add a [dim, dim] matrix before the table at the output; it starts as the identity.
        softcap_kind: "tanh" or "sigmoid".

    `forward` is `embed`, so the module can replace an nn.Embedding.

    Raises:
        BadRequest: vocab or dim is below 1.

    >>> table = TiedEmbedding(vocab=100, dim=16)
    >>> ids, targets = torch.randint(100, (2, 8)), torch.randint(100, (2, 8))
    >>> h = table.embed(ids)
    >>> h.shape, table.logits(h).shape
    (torch.Size([2, 8, 16]), torch.Size([2, 8, 100]))
    >>> table.loss(h, targets).backward()  # lookup and head gradients in one [100, 16] buffer
    >>> table.weight.grad.shape
    torch.Size([100, 16])
    """

    weight: nn.Parameter
    head: nn.Parameter | None

    def __init__(
        self,
        vocab: int,
        dim: int,
        init_std: float | None = None,
        softcap: float | None = None,
        input_grad_scale: float = 1.0,
        bridge: bool = False,
        *,
        softcap_kind: SoftcapKind = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if vocab < 1 or dim < 1:
            raise BadRequest(f"vocab={vocab} and dim={dim} must both be at least 1")
        self.vocab, self.dim = vocab, dim
        self.init_std = tied_init_std(dim) if init_std is None else init_std
        self.softcap, self.softcap_kind = softcap, softcap_kind
        self.input_grad_scale = input_grad_scale
        self.weight = nn.Parameter(torch.empty(vocab, dim, device=device, dtype=dtype))
        self.register_parameter("head", None)
        self.bridge = nn.Linear(dim, dim, bias=False, device=device, dtype=dtype) if bridge else None
        self._alias: tuple[Tensor, nn.Parameter] | None = None
        self._captured: list[tuple[Tensor, Tensor]] | None = None  # see gradient_share.py
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the weights; also for a module that was moved from the meta device by `to_empty`."""
        self.init_(self.weight, self.init_std)
        if self.head is not None:
            with torch.no_grad():
                self.head.copy_(self.weight)
        if self.bridge is not None:
            nn.init.eye_(self.bridge.weight)

    def init_(self, matrix: Tensor, std: float) -> None:  # [V, D]
        """Fill a vocabulary matrix from N(0, std)."""
        nn.init.normal_(matrix, std=std)

    @property
    def tied(self) -> bool:
        return self.head is None

    def forward(self, ids: Tensor) -> Tensor:  # [...] -> [..., D]
        return self.embed(ids)

    def embed(self, ids: Tensor) -> Tensor:  # [...] -> [..., D]
        """The embeddings of the ids."""
        self._alias = None
        if not (torch.is_grad_enabled() and self.weight.requires_grad) or in_functorch():
            return F.embedding(ids, self.weight)
        return self._embed_with_gradient(ids)

    @eager_only
    def _embed_with_gradient(self, ids: Tensor) -> Tensor:
        x, alias = _Lookup.apply(self.weight, ids, self.input_grad_scale, weakref.ref(self))  # type: ignore[no-untyped-call]
        if self.head is None:
            self._alias = alias, self.weight
        return cast(Tensor, x)

    def logits(self, h: Tensor, *, head: Tensor | None = None) -> Tensor:  # [..., D] -> [..., V]
        """Logits of hidden states; `head` [V, D] replaces the table."""
        z = F.linear(self._before_head(h), self._head_weight() if head is None else head)
        return softcapped(z, self.softcap, self.softcap_kind)

    def loss(  # [..., D], [...] -> scalar
        self, h: Tensor, targets: Tensor, *, head: Tensor | None = None, **options: Any
    ) -> Tensor:
        """Cross-entropy without the full logits; `head` as in `logits`, `options` as in `tied_cross_entropy`,
        where `return_metrics=True` gives a `LossAndMetrics`."""
        options = {"softcap": self.softcap, "softcap_kind": self.softcap_kind, **options}
        W = self._head_weight() if head is None else head
        return cast(Tensor, tied_cross_entropy(self._before_head(h), W, targets, **options))

    def _before_head(self, h: Tensor) -> Tensor:
        return h if self.bridge is None else cast(Tensor, self.bridge(h))

    def _head_weight(self) -> Tensor:
        if self.head is not None:
            return self.head
        if self._alias is not None and torch.is_grad_enabled() and self.weight.requires_grad:
            (alias, owner), self._alias = self._alias, None
            if owner is self.weight and alias.data_ptr() == owner.data_ptr() and not in_functorch():
                return alias
        return self.weight

    def sum_over_ranks(self, sums: Tensor) -> Tensor:
        """Add up sums over table rows from all ranks; here all rows are on this rank."""
        return sums

    def untie(self, optimizer: Optimizers = None, *, own_group: bool = False) -> nn.Parameter:
        """Split the table in place into `weight` and `head`, with its optimizer state; returns the head."""
        if self.head is not None:
            raise BadRequest("the table is already untied")
        self._alias = None
        self.head = split_parameter(self.weight, optimizer, own_group=own_group)
        return self.head

    def __getstate__(self) -> dict[str, Any]:
        # The alias belongs to the graph of one step and can be neither copied nor pickled.
        return {**self.__dict__, "_alias": None, "_captured": None}

    def extra_repr(self) -> str:
        cap = "" if self.softcap is None else f", softcap={self.softcap}"
        return f"{self.vocab}, {self.dim}, {'tied' if self.tied else 'untied'}{cap}"


class _Lookup(torch.autograd.Function):
    """(W, ids) -> (W[ids], an alias of W); see the module docstring."""

    @staticmethod
    def forward(
        ctx: Any, W: Tensor, ids: Tensor, scale: float, owner: weakref.ref[TiedEmbedding]
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        # Not save_for_backward: two losses may share a lookup, and the first backward would release the ids.
        ctx.ids, ctx.ids_version = ids, _version(ids)
        ctx.rows, ctx.scale, ctx.owner = W.shape[0], scale, owner
        return F.embedding(ids, W), W.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        dx, dW = gradients
        if dx is None:
            return dW, None, None, None
        ids: Tensor = ctx.ids
        if _version(ids) != ctx.ids_version:
            raise RuntimeError("the token ids given to embed() were changed in place before backward; embed a copy")
        owner = ctx.owner()
        if owner is not None and owner._captured is not None:
            owner._captured.append((ids, dx.detach() * ctx.scale))
        if dW is None or torch.is_grad_enabled():
            # There is no head gradient to add to, or it will be differentiated again and must not be overwritten.
            if ctx.scale != 1.0:
                dx = dx * ctx.scale
            rows = torch.ops.aten.embedding_dense_backward(dx, ids, ctx.rows, -1, False)
            return rows if dW is None else rows + dW, None, None, None
        dW.index_add_(0, ids.reshape(-1), dx.reshape(-1, dx.shape[-1]), alpha=ctx.scale)
        return dW, None, None, None


def _version(t: Tensor) -> int:
    return 0 if t.is_inference() else t._version
