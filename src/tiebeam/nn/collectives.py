"""Collectives between the ranks of a process group, and which rows of a row-sharded tensor each rank holds.

Rows are split as `torch.chunk` and DTensor's `Shard(0)` split them: ceil(R / N) rows per rank until none are left, so
the last ranks may hold fewer rows, or none. Because the layout is the same, a local block can be viewed as a DTensor,
and a distributed checkpoint of it loads on any number of ranks.

Every method that communicates is a collective: all ranks of the group call it, in the same order. With one rank no
method communicates.
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
class RankGroup:
    """A process group, seen from one of its ranks.

    >>> group = RankGroup(rank=2, size=4, group=None)
    >>> group.shard_sizes(10)  # rows of a [10, D] tensor on each rank
    [3, 3, 3, 1]
    >>> group.shard(10)
    slice(6, 9, None)
    """

    rank: int
    size: int
    group: dist.ProcessGroup | None  # None only for a single rank without a process group

    @classmethod
    def of(cls, group: dist.ProcessGroup | None = None) -> RankGroup:
        """The given group, by default all ranks of the job; without torch.distributed, a group of one."""
        if not dist.is_available() or not dist.is_initialized():
            if group is not None:
                raise BadRequest("a process group was given but torch.distributed is not initialized")
            return cls(0, 1, None)
        group = group or dist.group.WORLD
        rank = dist.get_rank(group)
        if rank < 0:
            raise BadRequest("this rank is not a member of the process group that shards the vocabulary")
        return cls(rank, dist.get_world_size(group), group)

    def shard_size(self, rows: int) -> int:
        """Rows of a full shard."""
        return -(-rows // self.size)

    def shard(self, rows: int, rank: int | None = None) -> slice:
        """The rows that a rank holds, by default this one."""
        rank = self.rank if rank is None else rank
        size = self.shard_size(rows)
        return slice(min(rank * size, rows), min((rank + 1) * size, rows))

    def shard_sizes(self, rows: int) -> list[int]:
        """The number of rows on each rank."""
        shards = [self.shard(rows, rank) for rank in range(self.size)]
        return [shard.stop - shard.start for shard in shards]

    def all_gather(self, part: Tensor) -> Tensor:  # [C, ...] -> [N * C, ...], in order of rank
        if self.size == 1:
            return part
        full = part.new_empty(self.size * part.shape[0], *part.shape[1:])
        _all_gather(full, part.contiguous(), group=self.group)
        return full

    def reduce_scatter(self, full: Tensor) -> Tensor:  # [N * C, ...] -> [C, ...]: this rank's part of the sum
        if self.size == 1:
            return full
        each = full.shape[0] // self.size
        if dist.get_backend(self.group) == "gloo":
            # Gloo implements reduce_scatter as an all-reduce, which sends twice the bytes.
            parts = self.all_to_all(full, [each] * self.size, [each] * self.size)
            return parts.view(self.size, each, *full.shape[1:]).sum(0)
        part = full.new_empty(each, *full.shape[1:])
        _reduce_scatter(part, full.contiguous(), group=self.group)
        return part

    def all_reduce_(self, values: Tensor) -> Tensor:
        """Sum over all ranks, in place; every rank gets the same bits."""
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def all_reduce_max_(self, values: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.group)
        return values

    def all_to_all(  # [sum(send_sizes), ...] -> [sum(receive_sizes), ...]
        self, parts: Tensor, send_sizes: list[int], receive_sizes: list[int]
    ) -> Tensor:
        """Send rank r its slice of `parts`; both input and output are in order of rank."""
        if self.size == 1:
            return parts
        out = parts.new_empty(sum(receive_sizes), *parts.shape[1:])
        dist.all_to_all_single(out, parts.contiguous(), receive_sizes, send_sizes, group=self.group)
        return out

    def gather_rows(self, block: Tensor, rows: int) -> Tensor | None:  # [V/N, ...] -> [V, ...] on rank 0, else None
        """The full tensor of which every rank holds its rows."""
        if self.size == 1:
            return block.detach().clone()
        # all_to_all instead of gather: it takes blocks of unequal size, and every backend implements it.
        sizes = self.shard_sizes(rows)
        send_sizes = [sizes[self.rank], *[0] * (self.size - 1)]
        full = self.all_to_all(block.detach(), send_sizes, sizes if self.rank == 0 else [0] * self.size)
        return full if self.rank == 0 else None

    def as_dtensor(self, block: Tensor, rows: int) -> DTensor:  # [V/N, ...] -> a DTensor [V, ...] without a copy
        """The same storage as a DTensor of the global shape, for `torch.distributed.checkpoint`."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard

        if self.group is None:
            raise BadRequest("a DTensor needs a process group; call torch.distributed.init_process_group first")
        mesh = DeviceMesh.from_group(self.group, block.device.type)
        shape = torch.Size((rows, *block.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(block.detach(), mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


def local_part(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this rank holds, as a view: writing to it writes to the DTensor."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def full_tensor(tensor: Tensor) -> Tensor:
    """The full value of a tensor that may be a DTensor. A collective if it is."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full
