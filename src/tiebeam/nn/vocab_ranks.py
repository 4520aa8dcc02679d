"""The ranks among which a vocabulary is shared out: who holds which rows, and the collectives between them.

Rows are dealt as `torch.chunk` and DTensor's `Shard(0)` deal them: ceil(V / N) to each rank until they run out, so the
last ranks may hold fewer, or none. With the same layout a block can be called a DTensor, and a distributed checkpoint
of it opens on any number of ranks.

Every method that exchanges something is a collective: all ranks of the group call it, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# Renamed in torch 2.13, where the old names warn.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class Ranks:
    """A process group seen from one of its ranks."""

    rank: int
    size: int
    group: dist.ProcessGroup | None  # None only for a single rank without a process group

    @classmethod
    def of(cls, group: dist.ProcessGroup | None = None) -> Ranks:
        """The given group, or all processes of the job; a process by itself is a group of one."""
        if not dist.is_available() or not dist.is_initialized():
            if group is not None:
                raise BadRequest("a process group was given but torch.distributed is not initialised")
            return cls(0, 1, None)
        group = group or dist.group.WORLD
        rank = dist.get_rank(group)
        if rank < 0:
            raise BadRequest("this process is not a member of the group that shares the vocabulary")
        return cls(rank, dist.get_world_size(group), group)

    def share(self, rows: int) -> int:
        """Rows of a full block."""
        return -(-rows // self.size)

    def block(self, rows: int, rank: int | None = None) -> slice:
        """The rows that a rank holds, by default this one."""
        rank = self.rank if rank is None else rank
        share = self.share(rows)
        return slice(min(rank * share, rows), min((rank + 1) * share, rows))

    def heights(self, rows: int) -> list[int]:
        blocks = [self.block(rows, rank) for rank in range(self.size)]
        return [block.stop - block.start for block in blocks]

    def gathered(self, part: Tensor) -> Tensor:  # [C, ...] -> [N * C, ...], rank upon rank
        if self.size == 1:
            return part
        whole = part.new_empty(self.size * part.shape[0], *part.shape[1:])
        _all_gather(whole, part.contiguous(), group=self.group)
        return whole

    def reduce_scattered(
        self, whole: Tensor
    ) -> Tensor:  # [N * C, ...] -> [C, ...]: the sum, of which each gets its part
        if self.size == 1:
            return whole
        each = whole.shape[0] // self.size
        if dist.get_backend(self.group) == "gloo":
            # Gloo's own is an all-reduce of which each keeps its part: twice the bytes.
            parts = self.dealt(whole, [each] * self.size, [each] * self.size)
            return parts.view(self.size, each, *whole.shape[1:]).sum(0)
        part = whole.new_empty(each, *whole.shape[1:])
        _reduce_scatter(part, whole.contiguous(), group=self.group)
        return part

    def summed_(self, values: Tensor) -> Tensor:
        """In place, over all ranks, with the same bits on each."""
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def largest_(self, values: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.group)
        return values

    def dealt(
        self, parts: Tensor, sends: list[int], receives: list[int]
    ) -> Tensor:  # [sum(sends), ...] -> [sum(r), ...]
        """To every rank its piece of `parts`, in order of rank; what comes back is in order of rank too."""
        if self.size == 1:
            return parts
        out = parts.new_empty(sum(receives), *parts.shape[1:])
        dist.all_to_all_single(out, parts.contiguous(), receives, sends, group=self.group)
        return out

    def collected(self, block: Tensor, rows: int) -> Tensor | None:  # [V/N, ...] -> [V, ...] on rank 0, None elsewhere
        """The whole of a tensor of which every rank holds its rows."""
        if self.size == 1:
            return block.detach().clone()
        # all_to_all and not gather: it takes blocks of unequal height, and every backend has it.
        heights = self.heights(rows)
        sends = [heights[self.rank], *[0] * (self.size - 1)]
        whole = self.dealt(block.detach(), sends, heights if self.rank == 0 else [0] * self.size)
        return whole if self.rank == 0 else None

    def as_dtensor(self, block: Tensor, rows: int) -> DTensor:  # [V/N, ...] -> a DTensor [V, ...] without a copy
        """The same storage under its global name, for `torch.distributed.checkpoint`, which then deals it anew."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard

        if self.group is None:
            raise BadRequest("a DTensor needs a process group; initialise torch.distributed, with one rank if need be")
        mesh = DeviceMesh.from_group(self.group, block.device.type)
        shape = torch.Size((rows, *block.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(block.detach(), mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
