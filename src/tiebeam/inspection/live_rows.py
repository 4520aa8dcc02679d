"""The health of the rows of a matrix in memory, by the same classification as for files (row_health.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint, TensorInfo
from tiebeam.inspection.row_health import UNTRAINED, classify_rows

if TYPE_CHECKING:
    import torch

_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_NAME = "rows"


@dataclass(frozen=True, slots=True)
class LiveRows:
    """The median norm of the rows of a matrix, and how many of them hold nothing learned."""

    rows: int
    median_norm: float
    untrained: int


class _Bytes:
    """The `Files` of one tensor in memory."""

    def __init__(self, values: torch.Tensor) -> None:
        import torch

        self._bytes = memoryview(values.reshape(-1).view(torch.uint8).numpy().data)

    def names(self) -> list[str]:
        return [_NAME]

    def folders(self) -> list[str]:
        return []

    def size(self, name: str) -> int:
        return len(self._bytes)

    def head(self, name: str, count: int) -> tuple[int, bytes]:
        return len(self._bytes), bytes(self._bytes[:count])

    def read(self, name: str, begin: int, end: int) -> bytes:
        return bytes(self._bytes[begin:end])


def live_rows(values: torch.Tensor, config: Mapping[str, Any] | None = None) -> LiveRows:  # [V, D]
    """Classify the rows of a matrix; about a second per GB.

    >>> import torch
    >>> live_rows(torch.cat([torch.ones(1, 16), torch.zeros(3, 16)]))
    LiveRows(rows=4, median_norm=4.0, untrained=3)
    """
    V, D = values.shape
    if not V or not D:
        return LiveRows(V, 0.0, V)
    values = values.detach().cpu().contiguous()
    kind = str(values.dtype).removeprefix("torch.")
    if kind not in _DTYPES:
        values, kind = values.float(), "float32"
    info = TensorInfo(_NAME, (V, D), _DTYPES[kind], _NAME, 0, values.numel() * values.element_size())
    checkpoint = Checkpoint("a matrix in memory", "module", _Bytes(values), {_NAME: info}, config)
    median, kinds = classify_rows(checkpoint, _NAME, None)
    return LiveRows(V, median, sum(len(kinds.get(kind, ())) for kind in UNTRAINED))
