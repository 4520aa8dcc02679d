"""Muon's work shared out: each process makes some of the updates orthogonal, and all get all of them.

Newton-Schulz steps are the costly part of Muon and need a whole matrix at a time. So every matrix has one owner, dealt
out so that the owners' products cost about the same. Replicas already hold every matrix whole: each owner does its own
and the results are gathered. Of a sharded matrix everyone sends its rows to the owner and gets its rows of the update
back: two exchanges in all, each of about the bytes that the shards hold.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

Work = Callable[[list[Tensor]], list[Tensor]]  # whole matrices -> their updates, shape for shape
Spread = Callable[[list[Tensor], Work], list[Tensor]]


def owners(shapes: Sequence[torch.Size], world: int) -> list[int]:
    """Who does which matrix: the costliest first, each to whoever has least to do; the same answer everywhere."""
    loads = [(0, rank) for rank in range(world)]
    found = [0] * len(shapes)
    for index in sorted(range(len(shapes)), key=lambda i: (-_cost(shapes[i]), i)):
        load, rank = heapq.heappop(loads)
        found[index] = rank
        heapq.heappush(loads, (load + _cost(shapes[index]), rank))
    return found


def between_replicas(matrices: list[Tensor], work: Work) -> list[Tensor]:  # each [R, C], whole -> its update, whole
    rank, world = dist.get_rank(), dist.get_world_size()
    owner = owners([matrix.shape for matrix in matrices], world)
    mine = work([matrix for matrix, who in zip(matrices, owner, strict=True) if who == rank])
    dtype = matrices[0].dtype
    sizes = [sum(m.numel() for m, who in zip(matrices, owner, strict=True) if who == r) for r in range(world)]
    sent = matrices[0].new_zeros(max(sizes))
    if mine:
        torch.cat([update.to(dtype).reshape(-1) for update in mine], out=sent[: sizes[rank]])
    received = gathered(sent)
    reached = [r * len(sent) for r in range(world)]
    updates = []
    for matrix, who in zip(matrices, owner, strict=True):
        updates.append(received[reached[who] : reached[who] + matrix.numel()].view(matrix.shape))
        reached[who] += matrix.numel()
    return updates


def between_shards(matrices: list[Tensor], work: Work) -> list[Tensor]:  # DTensors [R, C] -> local rows of the updates
    """The matrices are sharded by rows, as FSDP2 shards them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    owner = owners([matrix.shape for matrix in matrices], world)
    local = [local_part(matrix) for matrix in matrices]
    mine = [matrix.shape for matrix, who in zip(matrices, owner, strict=True) if who == rank]
    by_owner = sorted(range(len(matrices)), key=lambda i: owner[i])  # stable: within an owner in the given order
    sends = [sum(local[i].numel() for i in by_owner if owner[i] == r) for r in range(world)]
    receives = [sum(_rows(shape[0], r, world) * shape[1] for shape in mine) for r in range(world)]

    sent = torch.cat([local[i].reshape(-1) for i in by_owner])
    received = sent.new_empty(sum(receives))
    dist.all_to_all_single(received, sent, receives, sends)
    parts: list[list[Tensor]] = [[] for _ in mine]
    for r, start in enumerate(accumulate(receives[:-1], initial=0)):
        for number, shape in enumerate(mine):
            rows = _rows(shape[0], r, world)
            parts[number].append(received[start : start + rows * shape[1]].view(rows, shape[1]))
            start += rows * shape[1]

    updates = work([torch.cat(rows) for rows in parts])
    pieces = [
        torch.split(update.to(sent.dtype), [_rows(len(update), r, world) for r in range(world)]) for update in updates
    ]
    back = torch.cat([pieces[n][r].reshape(-1) for r in range(world) for n in range(len(mine))] or [sent[:0]])
    returned = torch.empty_like(sent)
    dist.all_to_all_single(returned, back, sends, receives)
    found: list[Tensor] = [sent] * len(matrices)
    start = 0
    for i in by_owner:
        found[i] = returned[start : start + local[i].numel()].view(local[i].shape)
        start += local[i].numel()
    return found


def gathered(part: Tensor) -> Tensor:  # [C, ...] -> [N * C, ...], process upon process
    whole = part.new_empty(dist.get_world_size() * part.shape[0], *part.shape[1:])
    # Renamed in torch 2.13, where the old name warns.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    all_gather(whole, part.contiguous())
    return whole


def _cost(shape: torch.Size) -> int:
    """Of one Newton-Schulz step, in multiplications: two products with the wide matrix and one without."""
    low, high = sorted(shape)
    return 2 * low * low * high + low**3


def _rows(rows: int, rank: int, world: int) -> int:
    """How many rows of a sharded matrix a process holds: equal parts, rounded up, until there are none left."""
    share = -(-rows // world)
    return max(0, min(share, rows - rank * share))


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of it; writing there writes to the whole."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
