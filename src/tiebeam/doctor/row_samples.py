"""A sample of the rows of a live parameter, so that a stage that must keep their values can be checked afterwards.

Every rank samples the rows that it holds: of a plain parameter all, of an FSDP2 shard its own rows, of a DeepSpeed
ZeRO-3 partition the rows that lie in it whole. No rank waits for another, so a check never hangs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SPREAD, _LAST = 64, 16  # rows over the whole matrix, and at its end, where a resize adds


@dataclass(frozen=True)
class RowSample:
    """Some rows of a matrix of `total` rows, copied to float32."""

    total: int
    rows: tuple[int, ...]
    values: torch.Tensor  # [rows, D]


@dataclass(frozen=True, slots=True)
class RowChange:
    """What became of the sampled rows that both samples have: how many were compared, changed, and became zero."""

    compared: int
    changed: int
    zeroed: int


def whole_shape(parameter: Any) -> tuple[int, ...]:
    """The shape of the matrix that `parameter` is, or is a part of."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def is_partitioned(parameter: Any) -> bool:
    """Whether this rank holds only a part of it: an FSDP2 shard, or a ZeRO-3 partition."""
    return hasattr(parameter, "device_mesh") or (hasattr(parameter, "ds_shape") and parameter.numel() == 0)


def local_rows(parameter: Any) -> tuple[int, torch.Tensor]:  # -> first row, [n, D]
    """The rows that this rank holds, and the number of the first one in the whole matrix."""
    if hasattr(parameter, "device_mesh"):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
        return int(offset[0]), parameter.detach().to_local()
    if hasattr(parameter, "ds_shape") and parameter.numel() == 0:
        return _partition_rows(parameter)
    return 0, parameter.detach()


def sample_rows(parameter: Any) -> RowSample | None:
    """Rows spread over the matrix and the last ones, as far as this rank holds them; None without values to read."""
    import torch

    shape = whole_shape(parameter)
    if len(shape) != 2 or parameter.is_meta:
        return None
    first, held = local_rows(parameter)
    wanted = sorted({*_spread(shape[0], _SPREAD), *range(max(0, shape[0] - _LAST), shape[0])})
    rows = tuple(row for row in wanted if first <= row < first + held.shape[0])
    index = torch.tensor([row - first for row in rows], dtype=torch.long, device=held.device)
    return RowSample(shape[0], rows, held[index].float().cpu())


def read_rows(parameter: Any, rows: tuple[int, ...]) -> tuple[tuple[int, ...], torch.Tensor]:
    """Those of `rows` that this rank holds, and their values in float32."""
    import torch

    first, held = local_rows(parameter)
    here = tuple(row for row in rows if first <= row < first + held.shape[0])
    index = torch.tensor([row - first for row in here], dtype=torch.long, device=held.device)
    return here, held[index].float().cpu()


def row_change(before: RowSample, parameter: Any) -> RowChange | None:
    """How `parameter` differs now from the sample; None if it has no values to read.

    A cast to half precision is not a change. Rows that were added are looked at too: they must not be zero.
    """
    import torch

    after = sample_rows(parameter)
    if after is None:
        return None
    rows, now = read_rows(parameter, before.rows)
    where = {row: i for i, row in enumerate(before.rows)}
    then = before.values[[where[row] for row in rows]] if rows else now
    changed = ~torch.isclose(then, now, rtol=1e-2, atol=1e-6, equal_nan=True).all(dim=1)
    zeroed = (now == 0).all(dim=1) & ~(then == 0).all(dim=1)
    added = torch.tensor([row >= before.total for row in after.rows], dtype=torch.bool)
    empty = int((after.values[added] == 0).all(dim=1).sum()) if added.any() else 0
    return RowChange(len(rows) + int(added.sum()), int(changed.sum()), int(zeroed.sum()) + empty)


def _partition_rows(parameter: Any) -> tuple[int, torch.Tensor]:
    """ZeRO-3 flattens a parameter and gives each rank one stretch; the last one is padded."""
    width = whole_shape(parameter)[1]
    flat = parameter.ds_tensor.detach()
    begin = _rank_of(parameter) * flat.numel()
    first = -(-begin // width)  # the first row that begins in the stretch
    end = min(begin + flat.numel(), int(parameter.ds_numel))
    count = max(0, end // width - first)
    start = first * width - begin
    return first, flat[start : start + count * width].reshape(count, width)


def _rank_of(parameter: Any) -> int:
    import torch.distributed as dist

    if not dist.is_initialized():
        return 0
    return dist.get_rank(getattr(parameter, "ds_process_group", None))


def _spread(total: int, count: int) -> Iterator[int]:
    step = max(1, total // count)
    return iter(range(0, total, step))
