"""Distributed Muon: each rank orthogonalizes some of the updates, and all ranks get all of them.

Newton-Schulz steps are the expensive part of Muon and need a full matrix at a time. So every matrix has one owner rank,
chosen so that the owners' matrix products cost about the same. Under DDP every rank already has every matrix: each
owner computes its own updates and the results are all-gathered. Under FSDP2 every rank sends its rows to the owner and
gets its rows of the update back: two all-to-alls, each of about the bytes that the shards hold.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from tiebeam.nn.collectives import RankGroup, local_part

Work = Callable[[list[Tensor]], list[Tensor]]  # full matrices -> their updates, of the same shapes
Spread = Callable[[list[Tensor], Work], list[Tensor]]


def owners(shapes: Sequence[torch.Size], world_size: int) -> list[int]:
    """The owner rank of each matrix: most expensive first, each to the least loaded rank; the same on all ranks."""
    loads = [(0, rank) for rank in range(world_size)]
    owner = [0] * len(shapes)
    for index in sorted(range(len(shapes)), key=lambda i: (-newton_schulz_cost(shapes[i]), i)):
        load, rank = heapq.heappop(loads)
        owner[index] = rank
        heapq.heappush(loads, (load + newton_schulz_cost(shapes[index]), rank))
    return owner


def between_replicas(matrices: list[Tensor], work: Work) -> list[Tensor]:  # each [R, C], full -> its update, full
    ranks = RankGroup.of()
    owner = owners([matrix.shape for matrix in matrices], ranks.size)
    mine = work([matrix for matrix, rank in zip(matrices, owner, strict=True) if rank == ranks.rank])
    dtype = matrices[0].dtype
    sizes = [sum(m.numel() for m, rank in zip(matrices, owner, strict=True) if rank == r) for r in range(ranks.size)]
    sent = matrices[0].new_zeros(max(sizes))
    if mine:
        torch.cat([update.to(dtype).reshape(-1) for update in mine], out=sent[: sizes[ranks.rank]])
    received = ranks.all_gather(sent)
    offsets = [r * len(sent) for r in range(ranks.size)]
    updates = []
    for matrix, rank in zip(matrices, owner, strict=True):
        updates.append(received[offsets[rank] : offsets[rank] + matrix.numel()].view(matrix.shape))
        offsets[rank] += matrix.numel()
    return updates


def between_shards(matrices: list[Tensor], work: Work) -> list[Tensor]:  # DTensors [R, C] -> local rows of the updates
    """The matrices are sharded by rows, as FSDP2 shards them."""
    ranks = RankGroup.of()
    owner = owners([matrix.shape for matrix in matrices], ranks.size)
    local = [local_part(matrix) for matrix in matrices]
    mine = [matrix.shape for matrix, rank in zip(matrices, owner, strict=True) if rank == ranks.rank]
    rows_on = [ranks.shard_sizes(shape[0]) for shape in mine]  # of each matrix of mine, on each rank
    by_owner = sorted(range(len(matrices)), key=lambda i: owner[i])  # stable: within an owner in the given order
    sends = [sum(local[i].numel() for i in by_owner if owner[i] == r) for r in range(ranks.size)]
    receives = [sum(rows[r] * shape[1] for rows, shape in zip(rows_on, mine, strict=True)) for r in range(ranks.size)]

    sent = torch.cat([local[i].reshape(-1) for i in by_owner])
    received = ranks.all_to_all(sent, sends, receives)
    parts: list[list[Tensor]] = [[] for _ in mine]
    for r, start in enumerate(accumulate(receives[:-1], initial=0)):
        for number, shape in enumerate(mine):
            rows = rows_on[number][r]
            parts[number].append(received[start : start + rows * shape[1]].view(rows, shape[1]))
            start += rows * shape[1]

    updates = work([torch.cat(rows) for rows in parts])
    pieces = [torch.split(update.to(sent.dtype), rows) for update, rows in zip(updates, rows_on, strict=True)]
    back = torch.cat([pieces[n][r].reshape(-1) for r in range(ranks.size) for n in range(len(mine))] or [sent[:0]])
    returned = ranks.all_to_all(back, receives, sends)
    found: list[Tensor] = [sent] * len(matrices)
    start = 0
    for i in by_owner:
        found[i] = returned[start : start + local[i].numel()].view(local[i].shape)
        start += local[i].numel()
    return found


def newton_schulz_cost(shape: Sequence[int]) -> int:
    """Multiplications of one Newton-Schulz step: two products with the wide matrix and one without."""
    low, high = sorted(shape)
    return 2 * low * low * high + low**3
