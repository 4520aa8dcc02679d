"""Load stored tensors as arrays ready to multiply, read and converted once.

Tensors are read in blocks into one array, so that loading needs little more memory than the weights in float32. Files
are read and not memory-mapped: truncating a mapped file kills the process that uses it, a short read is an error. So
the weights in memory are the whole cost of an open model, whatever type it is stored in. Stored matrices with the
same input (q, k, v; gate and up) are concatenated.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.checkpoint import Checkpoint, gguf_blocks
from tiebeam.checkpoint.dtypes import BITS, FLOATS, row_range
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.decode.numpy.ops import Array
from tiebeam.errors import BadRequest, UnreadableInput

DTYPES = ("float32", "float64", "float16", "bfloat16")
_BLOCK = 1 << 18  # elements converted at a time; they stay in the cache
_GGUF_BLOCK = 1 << 20  # weights read at a time; gguf_blocks.py cuts them into pieces for the cache
_REMOTE_BLOCK = 1 << 21  # one request each
_SLAB = 64 << 20  # bytes
_ALIGNMENT = 64  # bytes: where an array may begin in its slab
_HUGE_PAGE = 2 << 20  # bytes: where a slab begins


def blas_threads() -> int:
    """How many threads NumPy's BLAS uses, by its environment variables."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if os.environ.get(variable, "").isdigit():
            return max(1, int(os.environ[variable]))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


BY_ROWS = hasattr(np, "vecdot") and blas_threads() == 1
"""Whether one token is multiplied row by row (`vecdot`) rather than by BLAS's matrix-vector product.

On one thread a dot product per row reads at nearly the full bandwidth of the core, and OpenBLAS's kernel for short rows
at half of it. From two threads on, BLAS is faster (bench/decode.py); where another program uses the cores, its threads
wait for each other, so `tiebeam generate` then sets it to one.
"""


class Linear:
    """y = x @ W.T + b for W [out, in], as one or several row pieces; a piece may be a transposed view."""

    __slots__ = ("_by_rows", "_transposed", "bias", "pieces", "shape")

    def __init__(self, pieces: Sequence[Array], bias: Array | None = None) -> None:
        self.pieces = list(pieces)
        self._transposed = [W.T for W in pieces]  # [in, out]: a view, not a copy
        self._by_rows = BY_ROWS and all(W.flags.c_contiguous for W in pieces)
        self.bias = bias
        self.shape = (sum(len(W) for W in pieces), pieces[0].shape[1])

    def __call__(self, x: Array) -> Array:  # [T, in] -> [T, out]
        if len(x) == 1 and self._by_rows:
            parts = [np.vecdot(W, x) for W in self.pieces]  # [out_i]
            y = (parts[0] if len(parts) == 1 else np.concatenate(parts))[None]
        elif len(self._transposed) == 1:
            y = x @ self._transposed[0]  # [T, out]
        else:
            y = np.concatenate([x @ W for W in self._transposed], axis=1)
        if self.bias is not None:
            y += self.bias
        return y


class Slabs:
    """Arrays cut from large allocations.

    NumPy asks for huge pages only for arrays of 4 MB and more. A smaller matrix has pages of 4 KB, and the first write
    to each of them costs more than dequantising it. Arrays of a quarter of a slab and more are allocated
    alone. A slab is freed with the last of its arrays; the part that no array uses is not written to, so it takes no
    memory. A slab begins with a huge page: one token is multiplied 4% faster than by matrices 16 bytes after a page.
    """

    def __init__(self, dtype: np.dtype[Any], most: int) -> None:
        """`most`: elements of all arrays together, so that a small model does not get a large slab."""
        self._dtype, self._left = dtype, most
        self._step = _ALIGNMENT // dtype.itemsize
        self._slab: NDArray[Any] = np.empty(0, dtype)
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...]) -> Array:
        size, slab = math.prod(shape), _SLAB // self._dtype.itemsize
        if 4 * size >= slab:
            return self._aligned(size).reshape(shape)
        taken = -(-size // self._step) * self._step
        with self._lock:
            if taken > len(self._slab):
                self._slab = self._aligned(max(taken, min(slab, self._left)))
            part, self._slab = self._slab[:size], self._slab[taken:]
            self._left = max(0, self._left - taken)
        return part.reshape(shape)

    def _aligned(self, size: int) -> NDArray[Any]:
        """An array that begins with a huge page, or with a cache line if it is small."""
        alignment = _HUGE_PAGE if size * self._dtype.itemsize >= _HUGE_PAGE else _ALIGNMENT
        room = np.empty(size + alignment // self._dtype.itemsize, self._dtype)
        start = -room.ctypes.data % alignment // self._dtype.itemsize
        return room[start : start + size]


class Weights:
    """Reads the tensors of one checkpoint and records which were used."""

    def __init__(self, checkpoint: Checkpoint, dtype: str = "float32") -> None:
        if dtype not in DTYPES:
            raise BadRequest(f"dtype={dtype!r} is not one of {', '.join(DTYPES)}")
        self.checkpoint = checkpoint
        self.dtype = np.dtype(np.float64 if dtype == "float64" else np.float32)
        self._round = dtype if dtype in ("float16", "bfloat16") else None
        self.used: set[str] = set()
        self._slabs = Slabs(self.dtype, sum(info.size for info in checkpoint.tensors.values()))

    def has(self, name: str) -> bool:
        return name in self.checkpoint.tensors

    def vector(self, name: str, shape: tuple[int, ...]) -> Array:
        """A small tensor."""
        self._check(name, shape)
        return self._rounded(self.checkpoint.tensor(name).astype(self.dtype)).reshape(shape)

    def optional(self, name: str, shape: tuple[int, ...], wanted: bool | None) -> Array | None:
        """A tensor that is required (True), not used (False), or used where stored (None)."""
        if wanted is False or (wanted is None and not self.has(name)):
            return None
        return self.vector(name, shape)

    def linear(
        self,
        names: Sequence[str],
        shapes: Sequence[tuple[int, int]],
        bias: bool | None = False,
        transposed: bool = False,
        make_orders: Sequence[Callable[[], NDArray[np.intp]] | None] = (),
    ) -> Linear:
        """The matrices [out, in] under `names` (without .weight), stacked; an order rearranges the rows of each."""
        for name, (rows, columns) in zip(names, shapes, strict=True):  # before anything of these sizes is made
            self._check(name + ".weight", (columns, rows) if transposed else (rows, columns))
        orders = [make and make() for make in make_orders or [None] * len(names)]
        biases = [self.optional(n + ".bias", (s[0],), bias) for n, s in zip(names, shapes, strict=True)]
        biases = [b if o is None or b is None else b[o] for b, o in zip(biases, orders, strict=True)]
        stacked = None
        if any(b is not None for b in biases):
            full = [np.zeros(s[0], self.dtype) if b is None else b for b, s in zip(biases, shapes, strict=True)]
            stacked = np.concatenate(full)
        names = [name + ".weight" for name in names]
        if transposed:  # stored [in, out]; BLAS multiplies one token by [out, in] a quarter faster (bench/decode.py)
            return Linear([self._transposed(names[0])], stacked)
        return Linear([self._converted(names, orders)], stacked)

    def matrix(self, name: str, shape: tuple[int, int]) -> Array:
        """One matrix [rows, columns] as stored."""
        self._check(name, shape)
        return self._converted([name])

    def stack(self, name: str, shape: tuple[int, int, int]) -> Array:
        """The matrices [experts, out, in] of all experts in one tensor."""
        self._check(name, shape)
        return self._converted([name])

    def rows_on_demand(self, name: str, shape: tuple[int, int]) -> Array | LazyRows:
        """A matrix of which only single rows are read."""
        self._check(name, shape)
        info = self.checkpoint.tensors[name]
        if info.strides is not None or info.packing:
            return self._converted([name])
        return LazyRows(self, name)

    def read_rows(self, name: str, start: int, stop: int) -> Array:  # -> [stop - start, ...]
        return self._rounded(self.checkpoint.rows(name, start, stop).astype(self.dtype, copy=False))

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        info = self.checkpoint.tensors.get(name)
        if info is None:
            raise UnreadableInput(f"{self.checkpoint.source} has no tensor {name!r}, which its architecture requires")
        self.used.add(name)
        if info.shape != shape:
            raise UnreadableInput(f"{name} is {list(info.shape)} but the configuration requires {list(shape)}")
        if info.dtype in BITS and info.dtype not in FLOATS:
            raise UnreadableInput(f"{name} holds {info.dtype}, not floating point; is the model quantised?")

    def _converted(self, names: Sequence[str], orders: Sequence[NDArray[np.intp] | None] = ()) -> Array:
        """The stored matrices concatenated along rows, in a new array."""
        infos = [self.checkpoint.tensors[name] for name in names]
        row = infos[0].shape[1:]
        out = self._slabs.empty((sum(info.shape[0] for info in infos), *row))
        top, local = 0, isinstance(self.checkpoint.files, LocalFiles)
        for info, order in zip(infos, orders or [None] * len(infos), strict=True):
            rows = info.shape[0]
            block = _REMOTE_BLOCK if not local else _GGUF_BLOCK if gguf_blocks.can_dequantize(info.dtype) else _BLOCK
            step = max(1, block // max(1, math.prod(row)))
            if info.strides is not None or info.packing:
                step = rows  # such a tensor can only be read at once
            for start in range(0, rows, step):
                stop = min(start + step, rows)
                self._read_into(out[top + start : top + stop], info.name, start, stop)
            if order is not None:
                out[top : top + rows] = out[top : top + rows][order]
            top += rows
        return out

    def _read_into(self, out: Array, name: str, start: int, stop: int) -> None:  # [stop - start, ...]
        """`read_rows` in place: GGUF blocks are dequantised straight to where they stay."""
        info = self.checkpoint.tensors[name]
        if self.dtype != np.float32 or self._round or info.strides or not gguf_blocks.can_dequantize(info.dtype):
            out[:] = self.read_rows(name, start, stop)
            return
        raw = self.checkpoint.read_bytes(name, *row_range(info.dtype, info.shape, start, stop))
        gguf_blocks.dequantize(info.dtype, raw, out)

    def _transposed(self, name: str) -> Array:  # stored [in, out] -> [out, in], in a new array
        info = self.checkpoint.tensors[name]
        rows, columns = info.shape
        out = self._slabs.empty((columns, rows))
        step = rows if info.strides is not None or info.packing else 256
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            out[:, start:stop] = self.read_rows(name, start, stop).T
        return out

    def _rounded(self, x: NDArray[Any]) -> Array:
        """Rounded to the requested dtype, so that the model is the one that would be saved in it."""
        if self._round == "float16":
            return x.astype(np.float16).astype(self.dtype)
        if self._round == "bfloat16":
            bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)  # to nearest, ties to even
            return np.where(np.isnan(x), x, rounded.view(np.float32)).astype(self.dtype, copy=False)
        return x


class UnreadWeights(Weights):
    """Checks every name, shape and type, and reads one row of each matrix: arrays are allocated, but not filled."""

    def _converted(self, names: Sequence[str], orders: Sequence[NDArray[np.intp] | None] = ()) -> Array:
        infos = [self.checkpoint.tensors[name] for name in names]
        for info in infos:
            if info.shape[0] and info.strides is None and not info.packing:
                self.read_rows(info.name, 0, 1)  # a type that cannot be decoded is an error
        return np.empty((sum(info.shape[0] for info in infos), *infos[0].shape[1:]), self.dtype)

    def _transposed(self, name: str) -> Array:
        return self._converted([name]).T


class LazyRows:
    """A matrix that stays in its file; indexing with ids reads those rows."""

    def __init__(self, weights: Weights, name: str) -> None:
        self._weights, self._name = weights, name
        info = weights.checkpoint.tensors[name]
        self.shape, self.dtype = info.shape, weights.dtype

    def __getitem__(self, ids: NDArray[np.int64]) -> Array:  # [T] -> [T, D]
        out = np.empty((len(ids), self.shape[1]), self.dtype)
        for t, row in enumerate(ids.tolist()):
            out[t] = self._weights.read_rows(self._name, row, row + 1)[0]
        return out
