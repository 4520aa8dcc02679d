"""A tied embedding of which every rank holds a block of rows, with data-parallel layers in between.

Setting: N ranks, each with its own tokens and its own copy (DDP) or shards (FSDP) of the layers. Of the [V, D] table
each rank holds ceil(V / N) rows with their gradient and optimizer state, and never any rows of the others.

    model = GPT(config)                          # the same seed on every rank
    shard_vocabulary(model)                      # in place; or shard_vocabulary(model, group)
    optimizers = make_optimizers(model.roles())  # after sharding: the parameters are new
    exclude_from_ddp(model)                      # before DDP(model)
    loss = DDP(model)(ids, targets)              # the mean over the tokens of all ranks, the same value on each
    (loss / accumulate).backward()               # the blocks' .grad is complete: do not reduce or divide it

With FSDP2 instead of DDP: `fully_shard(..., ignored_params=set(sharded_parameters(model).values()))`.

- `table.weight` (and `lm_head.weight`, if untied) are ordinary parameters [rows of this rank, D]; each rank updates its
  own rows.
- Collectives run in `embed`, in `loss` and in the backward of `embed`. So all ranks call the model together, the same
  number of times, in training and in evaluation, with gradients on all ranks or on none. Batches may differ in size.
  The upstream gradient (1 / accumulate, a loss scale) is the same on all ranks. `no_sync()` changes nothing here.
- Scale: the gradient that reaches the layers is N times that of the returned loss, because DDP and FSDP average over N
  ranks; the lookup divides it by N on its way into the block. If your layers' gradients are summed, divide by N there.
- Gradient norm of the full model: sqrt(layers^2 + the blocks' squares summed over ranks), see `table.sum_over_ranks`.
- Saving: `gather_model(model)` is an ordinary GPT on rank 0 (None on the others), with gathered embedding and head.
  For distributed checkpoints `sharded_parameters(model)` names the blocks, and `table.as_dtensor(block)` views a block,
  or an Adam moment of it, as a DTensor of the global shape without a copy. DCP saves and loads such a DTensor in place
  on any number of ranks.
- `model.untie(optimizers)`, a bridge, a factorized embedding (embed_dim) and softcap work as without sharding.
- For a table that no rank can hold: build on the meta device, shard, `model.to_empty(device="cpu")`,
  `model.reset_parameters()`. On a CPU that draws the same numbers in blocks.

The lookup requests rows from the ranks that hold them, by all-to-all and each distinct token once: U D (N - 1) / N
numbers each way per rank, U <= T. All-gathering the ids and reduce-scattering partial embeddings would be simpler and
send N times as much.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebeam.errors import BadRequest
from tiebeam.nn.call_mode import eager_only, in_functorch
from tiebeam.nn.collectives import RankGroup
from tiebeam.nn.gpt import GPT
from tiebeam.nn.loss import softcapped
from tiebeam.nn.sharded_loss import sharded_cross_entropy
from tiebeam.nn.tied_embedding import TiedEmbedding

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

_DRAW = 1 << 18  # numbers drawn at a time; a multiple of 16, the step of torch's CPU generator


class ShardedEmbedding(TiedEmbedding):
    """This rank's rows of a TiedEmbedding. `vocab` is the full size; `weight` is [rows, dim]."""

    ranks: RankGroup

    @classmethod
    def from_full(cls, table: TiedEmbedding, group: dist.ProcessGroup | None = None) -> ShardedEmbedding:
        """Keep this rank's rows of a table that is the same on every rank; the full table is not changed."""
        if isinstance(table, ShardedEmbedding):
            raise BadRequest("the table is already sharded")
        sharded = cls.__new__(cls)
        nn.Module.__init__(sharded)
        for name in ("vocab", "dim", "init_std", "softcap", "softcap_kind", "input_grad_scale"):
            setattr(sharded, name, getattr(table, name))
        sharded.ranks = RankGroup.of(group)
        sharded.weight = sharded.keep_rows(table.weight)
        sharded.register_parameter("head", None if table.head is None else sharded.keep_rows(table.head))
        sharded.bridge = table.bridge
        sharded._alias = sharded._captured = None
        return sharded

    def keep_rows(self, full: Tensor) -> nn.Parameter:  # [V, D] -> [rows, D]
        """A new parameter with a copy of this rank's rows of a full one."""
        block = full.detach()[self.ranks.shard(self.vocab)].clone()
        return nn.Parameter(block, requires_grad=full.requires_grad)

    def full_weight(self) -> Tensor | None:  # -> [V, D]
        """The full table on rank 0, None elsewhere. A collective."""
        return self.ranks.gather_rows(self.weight, self.vocab)

    def as_dtensor(self, block: Tensor) -> DTensor:  # [rows, D] -> [V, D]
        return self.ranks.as_dtensor(block, self.vocab)

    def init_(self, block: Tensor, std: float) -> None:
        """Draw the rows that a single rank would have drawn here, and leave the generator in the same state."""
        if block.is_meta:
            return
        rows, dim = self.ranks.shard(self.vocab), self.dim
        total = self.vocab * dim
        step = total if block.device.type != "cpu" or total < 2 * _DRAW else _DRAW
        flat = block.detach().view(-1)
        for start in range(0, total, step):
            # torch draws a tail shorter than 16 in another way, so it is drawn with the block before it.
            stop = total if total - (start + step) < 16 else start + step
            drawn = torch.empty(stop - start, dtype=block.dtype, device=block.device).normal_(std=std)
            low, high = max(start, rows.start * dim), min(stop, rows.stop * dim)
            if low < high:
                flat[low - rows.start * dim : high - rows.start * dim] = drawn[low - start : high - start]
            if stop == total:
                break

    def embed(self, ids: Tensor) -> Tensor:  # [...] -> [..., D]
        self._alias = None
        return self._embed(ids)

    @eager_only
    def _embed(self, ids: Tensor) -> Tensor:
        if in_functorch():
            raise BadRequest("torch.func transforms do not support a sharded table: it communicates with other ranks")
        requests = _requests(ids, self.vocab, self.ranks)
        x, alias = _Lookup.apply(self.weight, requests, self.input_grad_scale, weakref.ref(self))  # type: ignore[no-untyped-call]
        if self.head is None and torch.is_grad_enabled() and self.weight.requires_grad:
            self._alias = alias, self.weight
        return cast(Tensor, x)

    def logits(self, h: Tensor, *, head: Tensor | None = None) -> Tensor:  # [..., D] -> [..., V]
        """Logits of this rank's tokens over the full vocabulary, without gradients."""
        W = self._head_weight() if head is None else head
        h = self._before_head(h)
        if torch.is_grad_enabled() and (h.requires_grad or W.requires_grad):
            raise BadRequest("logits over a sharded vocabulary have no gradient; use loss() or torch.no_grad()")
        flat = h.reshape(-1, h.shape[-1])
        counts: list[int] = self.ranks.all_gather(torch.tensor([flat.shape[0]], device=h.device)).tolist()
        size, shard_sizes = self.ranks.size, self.ranks.shard_sizes(self.vocab)
        all_tokens = self.ranks.all_to_all(flat.repeat(size, 1), [flat.shape[0]] * size, counts)
        z = F.linear(all_tokens, W)
        # all_to_all sends rows of equal width, so the columns are sent transposed.
        parts = [part.t().reshape(-1) for part in torch.split(z, counts)]
        here = [flat.shape[0] * rows for rows in shard_sizes]
        columns = self.ranks.all_to_all(torch.cat(parts), [part.numel() for part in parts], here)
        full = columns.view(self.vocab, flat.shape[0]).t()
        return softcapped(full.reshape(*h.shape[:-1], self.vocab), self.softcap, self.softcap_kind)

    def loss(self, h: Tensor, targets: Tensor, *, head: Tensor | None = None, **options: Any) -> Tensor:
        """The loss over the tokens of all ranks; see `sharded_cross_entropy` for the options and the scale."""
        options = {"softcap": self.softcap, "softcap_kind": self.softcap_kind, **options}
        W = self._head_weight() if head is None else head
        found = sharded_cross_entropy(self._before_head(h), W, targets, self.vocab, self.ranks, **options)
        return cast(Tensor, found)

    def sum_over_ranks(self, sums: Tensor) -> Tensor:
        return self.ranks.all_reduce_(sums)

    def extra_repr(self) -> str:
        rows = self.ranks.shard(self.vocab)
        return f"{super().extra_repr()}, rows {rows.start} to {rows.stop}"


def shard_vocabulary(model: GPT, group: dist.ProcessGroup | None = None) -> GPT:
    """Replace embedding and head of a GPT by this rank's rows of them, in place.

    The model must be the same on every rank before the call.
    """
    table = ShardedEmbedding.from_full(model.table, group)
    model.replace_table(table)
    if model.lm_head is not None:
        head = nn.Linear(table.dim, table.weight.shape[0], bias=False, device="meta")
        head.weight = table.keep_rows(model.lm_head.weight)
        model.lm_head = head
    return model


def sharded_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The row-sharded parameters, by name. DDP and FSDP must leave them alone."""
    found: dict[str, nn.Parameter] = {}
    for module_name, module in model.named_modules():
        if isinstance(module, ShardedEmbedding):
            found |= {f"{module_name}.weight".lstrip("."): module.weight}
            if module.head is not None:
                found |= {f"{module_name}.head".lstrip("."): module.head}
    if isinstance(model, GPT) and model.lm_head is not None and found:
        found["lm_head.weight"] = cast(nn.Parameter, model.lm_head.weight)
    return found


def exclude_from_ddp(model: nn.Module) -> None:
    """Tell DistributedDataParallel to ignore the sharded parameters; call it before wrapping, and after `untie`."""
    from torch.nn.parallel import DistributedDataParallel

    blocks = list(sharded_parameters(model))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, blocks)  # type: ignore[no-untyped-call]


@torch.no_grad()
def gather_model(model: GPT) -> GPT | None:
    """The full model on rank 0; None on the others. A collective.

    Embedding and head are gathered copies; the other parameters are those of the sharded model.
    """
    table = model.table
    if not isinstance(table, ShardedEmbedding):
        raise BadRequest("the vocabulary of this model is not sharded; use the model itself")
    gathered = {name: table.ranks.gather_rows(block, table.vocab) for name, block in sharded_parameters(model).items()}
    if table.ranks.rank != 0:
        return None
    with torch.device("meta"):
        full = GPT(model.config)
    if model.lm_head is None:
        full.lm_head = None
    elif full.lm_head is None:  # untied during training
        full.lm_head = nn.Linear(table.dim, table.vocab, bias=False, device="meta")
    full.load_state_dict({**model.state_dict(), **cast(dict[str, Tensor], gathered)}, assign=True)
    return full.train(model.training)


@dataclass(frozen=True, slots=True)
class _Requests:
    """The row requests of one batch of ids."""

    shape: torch.Size
    inverse: Tensor  # [T]: index of each token among the distinct tokens
    wanted: Tensor  # local rows that each rank requests from this one, in order of rank
    sends: list[int]  # number of rows that this rank sends to each rank
    receives: list[int]  # number of rows that this rank receives from each rank
    ranks: RankGroup


@torch.no_grad()
def _requests(ids: Tensor, vocab: int, ranks: RankGroup) -> _Requests:  # [...]
    distinct, inverse = torch.unique(ids.reshape(-1).long(), return_inverse=True)
    if ids.device.type == "cpu" and len(distinct) and (int(distinct[0]) < 0 or int(distinct[-1]) >= vocab):
        wrong = int(distinct[0]) if int(distinct[0]) < 0 else int(distinct[-1])
        raise BadRequest(f"token id {wrong} is out of range for a table of {vocab} rows")
    stops = torch.tensor([ranks.shard(vocab, r).stop for r in range(ranks.size)], device=ids.device)
    receive = torch.searchsorted(distinct, stops).diff(prepend=stops.new_zeros(1))  # distinct is sorted
    send = ranks.all_to_all(receive, [1] * ranks.size, [1] * ranks.size)
    sends, receives = send.tolist(), receive.tolist()
    wanted = ranks.all_to_all(distinct, receives, sends) - ranks.shard(vocab).start
    return _Requests(ids.shape, inverse, wanted, sends, receives, ranks)


class _Lookup(torch.autograd.Function):
    """(block, ids) -> (the rows of the ids, from all ranks; an alias of the block, see tied_embedding.py)."""

    @staticmethod
    def forward(
        ctx: Any, block: Tensor, requests: _Requests, scale: float, owner: weakref.ref[ShardedEmbedding]
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.requests, ctx.rows, ctx.scale, ctx.owner = requests, block.shape[0], scale, owner
        rows = requests.ranks.all_to_all(block[requests.wanted], requests.sends, requests.receives)  # [U, D]
        return F.embedding(requests.inverse, rows).reshape(*requests.shape, block.shape[1]), block.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        dx, dW = gradients
        if torch.is_grad_enabled():
            raise BadRequest("a sharded table does not support second derivatives (create_graph=True)")
        if dx is None:
            return dW, None, None, None
        requests: _Requests = ctx.requests
        dx = dx.reshape(-1, dx.shape[-1])
        summed = dx.new_zeros(sum(requests.receives), dx.shape[1]).index_add_(0, requests.inverse, dx)
        rows = requests.ranks.all_to_all(summed, requests.receives, requests.sends)
        scale = ctx.scale / requests.ranks.size
        owner = ctx.owner()
        if owner is not None and owner._captured is not None:
            owner._captured.append((requests.wanted, rows * scale))
        if dW is None:
            dW = rows.new_zeros(ctx.rows, rows.shape[1])
        return dW.index_add_(0, requests.wanted, rows, alpha=scale), None, None, None
