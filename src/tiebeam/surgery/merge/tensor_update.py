"""New values of one stored tensor: the base, plus every adapter's change, computed in float32 and rounded once.

Every LoRA is L @ R in the layout in which the tensor is stored. For a matrix stored [out, in] that is lora_B @ lora_A;
for one stored [in, out] (Conv1D), and for an embedding [V, D], it is the transpose. DoRA then scales every output: the
rows of the first, the columns of the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from tiebeam.checkpoint import dtypes
from tiebeam.checkpoint.write.copy_bytes import Made
from tiebeam.checkpoint.write.safetensors import Entry
from tiebeam.errors import ProofFailed, UnreadableInput
from tiebeam.surgery.merge.adapter_parts import AdapterParts, Lora, Rows
from tiebeam.surgery.merge.stored_rows import CheckpointRows, StoredRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float32]
    Order = NDArray[np.intp]

_BLOCK = 1 << 18  # numbers at a time: what fits into a core's cache
_WORKERS = 2
_TILE = (32, 16, 512)  # rows, rank, columns of one product
_LARGEST_F16 = 65504.0


@dataclass(frozen=True, eq=False)
class LowRank:
    """LoRA factors in the layout of the stored tensor. `order`: stored row order[i] is the model's row i (GGUF)."""

    parts: AdapterParts
    lora: Lora
    flipped: bool
    order: Order | None = None

    def load(self) -> tuple[Numbers, Numbers]:  # -> [rows, r], [r, columns]
        a, b = (_read(self.parts, name) for name in (self.lora.a, self.lora.b))
        left, right = (a.T, b.T) if self.flipped else (b, a)
        return _ordered(left * left.dtype.type(self.lora.scale * self.parts.weight), self.order), right

    def magnitude(self) -> Numbers:  # -> [rows], or [columns] if flipped
        assert self.lora.magnitude is not None
        found = _read(self.parts, self.lora.magnitude).reshape(-1)
        return found if self.flipped else _ordered(found, self.order)


@dataclass(frozen=True, eq=False)
class FullCopy:
    """A whole tensor of the adapter in place of the stored one; with a weight, that far from the stored one to it."""

    parts: AdapterParts
    tensor: str
    order: Order | None = None

    def rows(self, start: int, stop: int) -> Numbers:
        source = CheckpointRows(self.parts.adapter.weights, self.tensor)
        if self.order is None:
            return source.rows(start, stop)
        return _ordered(source.rows(0, source.shape[0]), self.order)[start:stop]


@dataclass(frozen=True, eq=False)
class TrainedRows:
    """Single rows of the adapter in place of the stored ones."""

    parts: AdapterParts
    trained: Rows

    def load(self) -> Numbers:  # -> [N, D]
        return _read(self.parts, self.trained.tensor)


@dataclass(frozen=True, eq=False)
class BiasDelta:
    """The bias of lora_B, added to the layer's own."""

    parts: AdapterParts
    lora: Lora
    order: Order | None = None

    def load(self) -> Numbers:  # -> [out]
        assert self.lora.bias is not None
        found = _read(self.parts, self.lora.bias)
        return _ordered(found * found.dtype.type(self.lora.scale * self.parts.weight), self.order)


@dataclass(frozen=True, eq=False)
class Update:
    """The changes of one stored tensor, in the order of the adapters."""

    name: str
    base: StoredRows
    low_rank: tuple[LowRank, ...] = ()
    copies: tuple[FullCopy, ...] = ()
    rows: tuple[TrainedRows, ...] = ()
    biases: tuple[BiasDelta, ...] = ()

    def entry(self, stored: Entry, name: str | None = None) -> Entry:
        """The tensor to be written, in the type of `stored`."""
        shape = self.base.shape
        size = dtypes.nbytes(stored.dtype, shape)
        assert size is not None
        return Entry(name or self.name, stored.dtype, shape, Made(size, lambda: self._encoded(stored.dtype)))

    def prepared(self) -> Prepared:
        """The factors in memory, to compute rows with; forget it after the tensor."""
        return Prepared(self)

    def _encoded(self, dtype: str) -> Iterator[bytes]:
        """Blocks in order, computed by two threads a few ahead of the writer."""
        ready = self.prepared()
        waiting: deque[Future[bytes]] = deque()
        with ThreadPoolExecutor(_WORKERS) as workers:
            for start, stop in ready.ranges():
                waiting.append(workers.submit(self._block, ready, dtype, start, stop))
                if len(waiting) > 2 * _WORKERS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _block(self, ready: Prepared, dtype: str, start: int, stop: int) -> bytes:
        import numpy as np

        x = ready.rows(start, stop)
        if dtype == "F16" and x.size and not np.abs(x).max() <= _LARGEST_F16:
            raise ProofFailed(
                f"{self.name} leaves the range of its type F16 when merged; nothing was written (store the base in "
                "BF16)"
            )
        return dtypes.encode(dtype, x)


class Prepared:
    """An `Update` with its factors loaded."""

    def __init__(self, update: Update) -> None:
        import numpy as np

        self.base = replace(update.base)  # generated bytes are kept as long as this is
        self.copies = update.copies
        self.trained = [(rows.trained.ids, rows.load(), rows.parts.weight) for rows in update.rows]
        self.biases = [delta.load() for delta in update.biases]
        self.left = self.right = self.dora = None
        if update.low_rank:
            loaded = [part.load() for part in update.low_rank]
            self.left = np.ascontiguousarray(np.concatenate([left for left, _ in loaded], 1))  # [rows, r]
            self.right = np.ascontiguousarray(np.concatenate([right for _, right in loaded], 0))  # [r, columns]
        if update.low_rank and update.low_rank[0].lora.magnitude is not None:
            (part,) = update.low_rank  # the plan refuses DoRA together with another adapter
            self.dora = self._dora(part)

    def rows(self, start: int, stop: int) -> Numbers:  # -> [stop - start, ...]
        """Rows start:stop with every change, in float32."""
        x = self._before_dora(start, stop)
        if self.dora is not None:
            x *= self.dora if self.dora.ndim == 1 else self.dora[start:stop]
        for ids, new, weight in self.trained:
            for i, row in enumerate(ids):
                if start <= row < stop:
                    x[row - start] = new[i] if weight == 1.0 else x[row - start] + weight * (new[i] - x[row - start])
        return x

    def ranges(self) -> Iterator[tuple[int, int]]:
        rows, width = self.base.shape[0], max(1, prod(self.base.shape[1:]))
        step = max(1, _BLOCK // width)
        return ((start, min(start + step, rows)) for start in range(0, rows, step))

    def _before_dora(self, start: int, stop: int) -> Numbers:
        if len(self.copies) == 1 and self.copies[0].parts.weight == 1.0:
            x = self.copies[0].rows(start, stop)
        else:
            x = self.base.rows(start, stop)
            if self.copies:
                x = x + sum(copy.parts.weight * (copy.rows(start, stop) - x) for copy in self.copies)
        for delta in self.biases:
            x += delta[start:stop]
        if self.left is not None and self.right is not None:
            add_product(x, self.left[start:stop], self.right)
        return x

    def _dora(self, part: LowRank) -> Numbers:  # -> [rows, 1] or [columns]
        """Magnitude over norm of every output."""
        import numpy as np

        squares = (np.square(self._before_dora(start, stop), dtype=np.float64) for start, stop in self.ranges())
        if part.flipped:
            norms = np.sqrt(sum(block.sum(0) for block in squares))
        else:
            norms = np.sqrt(np.concatenate([block.sum(1) for block in squares]))
        with np.errstate(divide="ignore", invalid="ignore"):
            scale: Numbers = (part.magnitude() / norms).astype(np.float32)
        return scale if part.flipped else scale[:, None]


def add_product(x: Numbers, left: Numbers, right: Numbers) -> None:  # [n, m] += [n, r] @ [r, m]
    """Add a product in tiles so small that OpenBLAS computes them on the calling thread.

    Above 2^18 multiplications it wakes its own threads, which then wait for each other beside ours: measured 60 ns per
    number on a busy machine, against 0.8 with these tiles.
    """
    import numpy as np

    n, r, m = len(x), left.shape[1], x.shape[1]
    whole = n - n % _TILE[0]
    for k in range(0, r, _TILE[1]):
        factors = left[:, k : k + _TILE[1]]
        tiles = np.ascontiguousarray(factors[:whole]).reshape(-1, _TILE[0], factors.shape[1])
        for column in range(0, m, _TILE[2]):
            at = slice(column, column + _TILE[2])
            part = right[k : k + _TILE[1], at]
            x[:whole, at] += np.matmul(tiles, part).reshape(whole, part.shape[1])
            if whole < n:
                x[whole:, at] += factors[whole:] @ part


def check_finite(parts: AdapterParts) -> None:
    """Refuse an adapter with a NaN or an infinity, before anything is written."""
    import numpy as np

    weights = parts.adapter.weights
    for name, info in weights.tensors.items():
        step = max(1, (1 << 21) // max(1, prod(info.shape[1:]))) if info.shape else 1
        for start in range(0, info.shape[0] if info.shape else 0, step):
            if not np.isfinite(np.asarray(weights.rows(name, start, start + step), np.float32)).all():
                raise UnreadableInput(
                    f"{name} of {parts.adapter.source} holds a NaN or an infinity; its training diverged or the file "
                    "is "
                    "damaged: take an earlier checkpoint of the adapter"
                )


def _read(parts: AdapterParts, name: str) -> Numbers:
    import numpy as np

    return np.asarray(parts.adapter.weights.tensor(name), np.float32)


def _ordered(values: Numbers, order: Order | None) -> Numbers:
    """The model's rows in the order in which they are stored."""
    import numpy as np

    if order is None:
        return values
    out = np.empty_like(values)
    out[order] = values
    return out
