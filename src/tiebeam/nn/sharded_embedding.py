"""A tied table of which every rank holds a block of rows, between the ends of a trunk that is data-parallel.

Setting: N ranks, each with its own tokens and its own copy of the trunk (DDP) or its shards of it (FSDP); of the
[V, D] table each holds ceil(V / N) rows, their gradient and their optimizer state, and nothing of the others' ever.

    model = GPT(config)                          # the same seed on every rank: drawn whole, own rows kept
    shard_vocabulary(model)                      # in place; or shard_vocabulary(model, group)
    optimizers = make_optimizers(model.roles())  # after sharding: the parameters are new
    keep_from_ddp(model)                         # before DDP(model)
    loss = DDP(model)(ids, targets)              # the mean over the tokens of all ranks, the same number on each
    (loss / accumulate).backward()               # the blocks' .grad is complete: never reduce it, never divide it

With FSDP2 instead of DDP: `fully_shard(..., ignored_params=set(sharded_parameters(model).values()))`.

- `table.weight` (and `lm_head.weight`, untied) are ordinary parameters [rows of this rank, D]; each rank steps its own.
- Collectives run in `embed`, in `loss` and in the backward of `embed`. So all ranks call the model together, the same
  number of times, in training and in evaluation, with gradients on all or on none; batches may differ in size. The
  upstream gradient (1 / accumulate, a loss scale) is the same on all ranks. Under `no_sync()` nothing changes here.
- Scale: the gradient that reaches the trunk is N times that of the returned loss, since DDP and FSDP average over the N
  ranks; the lookup divides it by N again on its way into the block. With a trunk that sums instead, divide by N there.
- A gradient's norm over the whole model is sqrt(trunk^2 + the blocks' squares summed over ranks): `table.over_ranks`.
- Save: `whole_model(model)` is an ordinary GPT on rank 0 (None on the others) with the trunk's parameters shared and
  the ends gathered: export it. Distributed checkpoints: `sharded_parameters(model)` names the blocks, and
  `table.as_dtensor(block)` calls a block, or an Adam moment of it, by its global shape, without a copy: DCP saves and
  loads such a DTensor in place on any number of ranks.
- `model.untie(optimizers)`, a bridge, a factorised table (embed_dim), softcap and the rest work as without sharding.
- For a table that no rank could hold: build on the meta device, shard, `model.to_empty(device="cpu")`,
  `model.reset_parameters()`. On a CPU that draws the same numbers in blocks.

The lookup asks the ranks that hold the rows, by all-to-all and each distinct token once: U D (N - 1) / N numbers each
way per rank, U <= T. Gathering all ids and reduce-scattering partial embeddings would be simpler and take N times that.
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
from tiebeam.nn.gpt import GPT
from tiebeam.nn.loss import softcapped
from tiebeam.nn.sharded_loss import sharded_cross_entropy
from tiebeam.nn.tied_embedding import TiedEmbedding
from tiebeam.nn.vocab_ranks import Ranks

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

_DRAW = 1 << 18  # numbers drawn at a time; a multiple of 16, the step in which torch's CPU generator fills a tensor


class ShardedEmbedding(TiedEmbedding):
    """This rank's rows of a TiedEmbedding. `vocab` is that of the whole; `weight` is [rows, dim]."""

    ranks: Ranks

    @classmethod
    def from_full(cls, table: TiedEmbedding, group: dist.ProcessGroup | None = None) -> ShardedEmbedding:
        """Keep own rows of a table that is the same on every rank; the full one is left alone."""
        if isinstance(table, ShardedEmbedding):
            raise BadRequest("the table is sharded already")
        sharded = cls.__new__(cls)
        nn.Module.__init__(sharded)
        for name in ("vocab", "dim", "init_std", "softcap", "softcap_kind", "input_grad_scale"):
            setattr(sharded, name, getattr(table, name))
        sharded.ranks = Ranks.of(group)
        sharded.weight = sharded.kept(table.weight)
        sharded.register_parameter("head", None if table.head is None else sharded.kept(table.head))
        sharded.bridge = table.bridge
        sharded._alias = sharded._captured = None
        return sharded

    def kept(self, whole: Tensor) -> nn.Parameter:  # [V, D] -> [rows, D]
        """A parameter with this rank's rows of a whole one, in memory of its own."""
        block = whole.detach()[self.ranks.block(self.vocab)].clone()
        return nn.Parameter(block, requires_grad=whole.requires_grad)

    def full_weight(self) -> Tensor | None:  # -> [V, D]
        """The whole table on rank 0, None elsewhere. A collective."""
        return self.ranks.collected(self.weight, self.vocab)

    def as_dtensor(self, block: Tensor) -> DTensor:  # [rows, D] -> [V, D]
        return self.ranks.as_dtensor(block, self.vocab)

    def draw_(self, block: Tensor, std: float) -> None:
        """The rows that the one-process draw would have put here, the generator left where it would have left it."""
        if block.is_meta:
            return
        rows, dim = self.ranks.block(self.vocab), self.dim
        whole = self.vocab * dim
        step = whole if block.device.type != "cpu" or whole < 2 * _DRAW else _DRAW
        flat = block.detach().view(-1)
        for start in range(0, whole, step):
            # A tail shorter than 16 would be drawn in another way, so it stays with the piece before it.
            stop = whole if whole - (start + step) < 16 else start + step
            drawn = torch.empty(stop - start, dtype=block.dtype, device=block.device).normal_(std=std)
            low, high = max(start, rows.start * dim), min(stop, rows.stop * dim)
            if low < high:
                flat[low - rows.start * dim : high - rows.start * dim] = drawn[low - start : high - start]
            if stop == whole:
                break

    def embed(self, ids: Tensor) -> Tensor:  # [...] -> [..., D]
        self._alias = None
        return self._ask(ids)

    @eager_only
    def _ask(self, ids: Tensor) -> Tensor:
        if in_functorch():
            raise BadRequest("a sharded table talks to other processes; torch.func transforms can't follow it there")
        asked = _asked(ids, self.vocab, self.ranks)
        x, alias = _Lookup.apply(self.weight, asked, self.input_grad_scale, weakref.ref(self))  # type: ignore[no-untyped-call]
        if self.head is None and torch.is_grad_enabled() and self.weight.requires_grad:
            self._alias = alias, self.weight
        return cast(Tensor, x)

    def logits(self, h: Tensor, *, head: Tensor | None = None) -> Tensor:  # [..., D] -> [..., V]
        """This rank's tokens against the whole vocabulary, for looking at: no gradient passes."""
        W = self._head_weight() if head is None else head
        h = self._before_head(h)
        if torch.is_grad_enabled() and (h.requires_grad or W.requires_grad):
            raise BadRequest("logits over a sharded vocabulary carry no gradient; use loss, or torch.no_grad()")
        flat = h.reshape(-1, h.shape[-1])
        counts: list[int] = self.ranks.gathered(torch.tensor([flat.shape[0]], device=h.device)).tolist()
        size, heights = self.ranks.size, self.ranks.heights(self.vocab)
        everyone = self.ranks.dealt(flat.repeat(size, 1), [flat.shape[0]] * size, counts)
        z = F.linear(everyone, W)
        # Rows of unequal width do not deal; a rank's columns travel as rows.
        parts = [part.t().reshape(-1) for part in torch.split(z, counts)]
        here = [flat.shape[0] * height for height in heights]
        columns = self.ranks.dealt(torch.cat(parts), [part.numel() for part in parts], here)
        whole = columns.view(self.vocab, flat.shape[0]).t()
        return softcapped(whole.reshape(*h.shape[:-1], self.vocab), self.softcap, self.softcap_kind)

    def loss(self, h: Tensor, targets: Tensor, *, head: Tensor | None = None, **options: Any) -> Tensor:
        """The loss over the tokens of all ranks; see `sharded_cross_entropy` for the options and the scale."""
        options = {"softcap": self.softcap, "softcap_kind": self.softcap_kind, **options}
        W = self._head_weight() if head is None else head
        return sharded_cross_entropy(self._before_head(h), W, targets, self.vocab, self.ranks, **options)

    def over_ranks(self, sums: Tensor) -> Tensor:
        return self.ranks.summed_(sums)

    def extra_repr(self) -> str:
        rows = self.ranks.block(self.vocab)
        return f"{super().extra_repr()}, rows {rows.start} to {rows.stop}"


def shard_vocabulary(model: GPT, group: dist.ProcessGroup | None = None) -> GPT:
    """Swap the ends of a GPT for this rank's rows of them, in place. The model is the same on every rank."""
    whole = model.table
    table = ShardedEmbedding.from_full(whole, group)
    model.replace_table(table)
    if model.lm_head is not None:
        head = nn.Linear(table.dim, table.weight.shape[0], bias=False, device="meta")
        head.weight = table.kept(model.lm_head.weight)
        model.lm_head = head
    return model


def sharded_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of which this rank holds a block, by name: neither DDP nor FSDP may touch them."""
    found: dict[str, nn.Parameter] = {}
    for module_name, module in model.named_modules():
        if isinstance(module, ShardedEmbedding):
            found |= {f"{module_name}.weight".lstrip("."): module.weight}
            if module.head is not None:
                found |= {f"{module_name}.head".lstrip("."): module.head}
    if isinstance(model, GPT) and model.lm_head is not None and found:
        found["lm_head.weight"] = cast(nn.Parameter, model.lm_head.weight)
    return found


def keep_from_ddp(model: nn.Module) -> None:
    """Tell DistributedDataParallel to leave the blocks alone. Before it wraps the model, and after `untie`."""
    from torch.nn.parallel import DistributedDataParallel

    blocks = list(sharded_parameters(model))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, blocks)  # type: ignore[no-untyped-call]


@torch.no_grad()
def whole_model(model: GPT) -> GPT | None:
    """The model as one process would hold it, on rank 0; None on the others. A collective.

    The trunk's parameters are the sharded model's own, the ends are gathered copies.
    """
    table = model.table
    if not isinstance(table, ShardedEmbedding):
        raise BadRequest("the vocabulary of this model is not sharded; it is whole as it is")
    ends = {name: table.ranks.collected(block, table.vocab) for name, block in sharded_parameters(model).items()}
    if table.ranks.rank != 0:
        return None
    with torch.device("meta"):
        whole = GPT(model.config)
    if model.lm_head is None:
        whole.lm_head = None
    elif whole.lm_head is None:  # untied on the way
        whole.lm_head = nn.Linear(table.dim, table.vocab, bias=False, device="meta")
    whole.load_state_dict({**model.state_dict(), **cast(dict[str, Tensor], ends)}, assign=True)
    return whole.train(model.training)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One batch of ids: who wants which rows from whom."""

    shape: torch.Size
    inverse: Tensor  # [T]: which of the distinct tokens each token is
    wanted: Tensor  # local rows that the others (and we) want of us, rank upon rank
    gives: list[int]  # rows that we give to each rank
    takes: list[int]  # rows that we take from each rank
    ranks: Ranks


@torch.no_grad()
def _asked(ids: Tensor, vocab: int, ranks: Ranks) -> _Asked:  # [...]
    distinct, inverse = torch.unique(ids.reshape(-1).long(), return_inverse=True)
    if ids.device.type == "cpu" and len(distinct) and (int(distinct[0]) < 0 or int(distinct[-1]) >= vocab):
        wrong = int(distinct[0]) if int(distinct[0]) < 0 else int(distinct[-1])
        raise BadRequest(f"a token id is {wrong} but the table has {vocab} rows")
    ends = torch.tensor([ranks.block(vocab, r).stop for r in range(ranks.size)], device=ids.device)
    takes = torch.searchsorted(distinct, ends).diff(prepend=ends.new_zeros(1))  # distinct is sorted
    gives = ranks.dealt(takes, [1] * ranks.size, [1] * ranks.size)
    give, take = gives.tolist(), takes.tolist()
    wanted = ranks.dealt(distinct, take, give) - ranks.block(vocab).start
    return _Asked(ids.shape, inverse, wanted, give, take, ranks)


class _Lookup(torch.autograd.Function):
    """(block, ids) -> (the ids' rows, wherever they are held; an alias of the block); see table.py for the alias."""

    @staticmethod
    def forward(
        ctx: Any, block: Tensor, asked: _Asked, scale: float, owner: weakref.ref[ShardedEmbedding]
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.asked, ctx.rows, ctx.scale, ctx.owner = asked, block.shape[0], scale, owner
        rows = asked.ranks.dealt(block[asked.wanted], asked.gives, asked.takes)  # [U, D]
        return F.embedding(asked.inverse, rows).reshape(*asked.shape, block.shape[1]), block.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        dx, dW = gradients
        if torch.is_grad_enabled():
            raise BadRequest("a sharded table has no gradient of its gradient (create_graph=True)")
        if dx is None:
            return dW, None, None, None
        asked: _Asked = ctx.asked
        dx = dx.reshape(-1, dx.shape[-1])
        summed = dx.new_zeros(sum(asked.takes), dx.shape[1]).index_add_(0, asked.inverse, dx)
        rows = asked.ranks.dealt(summed, asked.takes, asked.gives)
        scale = ctx.scale / asked.ranks.size
        owner = ctx.owner()
        if owner is not None and owner._captured is not None:
            owner._captured.append((asked.wanted, rows * scale))
        if dW is None:
            dW = rows.new_zeros(ctx.rows, rows.shape[1])
        return dW.index_add_(0, asked.wanted, rows, alpha=scale), None, None, None
