"""A tensor stored in chunks, one or more per rank, joined only when it is read.

Each rank of a distributed run saves what it held: some rows, some columns, or a range of a flattened buffer. A chunk is
a box of a grid (the tensor's shape, or its elements in one dimension). Together the chunks must fill the grid exactly,
which is checked before anything is read. Consecutive rows of a chunk are consecutive in its file, so reading rows opens
only the chunks that hold them.

If the files give shapes but not numbers, the tensor has no chunks and `unreadable` says why.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

from tiebeam.checkpoint import dtypes
from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.tensors import TensorInfo
from tiebeam.errors import NumbersNotRead, UnreadableInput

_COMPARISONS = 16  # per chunk, with its neighbours, if the chunks do not form a regular mesh
_UNSIGNED = {8: "U8", 16: "U16", 32: "U32", 64: "U64"}


class Chunk(NamedTuple):
    """A box of the grid, and how to find its numbers: a dense or strided tensor of that shape in one file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    locate: Callable[[Files], TensorInfo]
    identity: tuple[object, ...]
    """Equal for two chunks exactly when they are the same bytes."""

    @classmethod
    def at(cls, offsets: tuple[int, ...], info: TensorInfo) -> Chunk:
        """A chunk whose place in the file is already known."""
        return cls(offsets, info.shape, info.file, lambda files: info, (*info.storage, info.strides))


@dataclass(frozen=True)
class ShardedTensor:
    """The chunks of one tensor over its grid, in row order. `unreadable` says why the numbers cannot be read."""

    dtype: str
    grid: tuple[int, ...]
    chunks: tuple[Chunk, ...] = ()
    unreadable: str = ""
    _located: dict[int, TensorInfo] = field(default_factory=dict, compare=False, repr=False)
    _row_major: dict[int, memoryview] = field(default_factory=dict, compare=False, repr=False)

    @property
    def files(self) -> set[str]:
        return {chunk.file for chunk in self.chunks}

    @property
    def identity(self) -> tuple[object, ...]:
        return tuple((chunk.offsets, chunk.identity) for chunk in self.chunks)

    @cached_property
    def _extents(self) -> tuple[list[int], list[int]]:
        """First row of each chunk, and the last row that it or an earlier one reaches: two sorted lists."""
        rows = [_rows_of(chunk) for chunk in self.chunks]
        return [top for top, _ in rows], list(accumulate((bottom for _, bottom in rows), max))

    def read(self, files: Files, begin: int, end: int, name: str) -> bytes:
        """Bytes begin:end of the whole tensor in row-major order."""
        if self.unreadable:
            raise NumbersNotRead(f"the numbers of {name} are not read: {self.unreadable}")
        if begin == end:
            return b""
        itemsize = dtypes.BITS[self.dtype] // 8
        per_row = prod(self.grid[1:]) * itemsize
        first, last = begin // per_row, -(-end // per_row)
        raw = self._rows(files, first, last, name)
        return raw[begin - first * per_row : end - first * per_row]

    def _rows(self, files: Files, first: int, last: int, name: str) -> bytes:
        """Rows first:last of the grid (a scalar has one row)."""
        tops, reached = self._extents
        wanted = [
            (i, self.chunks[i], *_rows_of(self.chunks[i]))
            for i in range(bisect_right(reached, first), bisect_left(tops, last))
            if _rows_of(self.chunks[i])[1] > first
        ]
        full_width = all(chunk.sizes[1:] == self.grid[1:] for _, chunk, _, _ in wanted)
        if full_width:
            return b"".join(
                self._read_chunk(files, i, max(first, top) - top, min(last, bottom) - top, name)
                for i, _, top, bottom in wanted
            )
        for i, _, _, _ in wanted:  # check every chunk before allocating
            self._find(files, i, name)
        import numpy as np

        itemsize = dtypes.BITS[self.dtype] // 8
        whole = np.empty((last - first, *self.grid[1:], itemsize), np.uint8)
        for i, chunk, top, bottom in wanted:
            low, high = max(first, top), min(last, bottom)
            raw = self._read_chunk(files, i, low - top, high - top, name)
            box = tuple(slice(o, o + n) for o, n in zip(chunk.offsets[1:], chunk.sizes[1:], strict=True))
            block = np.frombuffer(raw, np.uint8).reshape(high - low, *chunk.sizes[1:], itemsize)
            whole[(slice(low - first, high - first), *box)] = block
        return whole.tobytes()

    def _find(self, files: Files, i: int, name: str) -> TensorInfo:
        """Where the numbers of a chunk are, looked up once."""
        info = self._located.get(i)
        if info is not None:
            return info
        chunk = self.chunks[i]
        info = chunk.locate(files)
        if info.shape != chunk.sizes or info.dtype != self.dtype:
            raise UnreadableInput(
                f"{chunk.file} holds {info.dtype} {list(info.shape)} for a shard of {name!r} that should be "
                f"{self.dtype} {list(chunk.sizes)}; it is damaged, or from another save"
            )
        if info.packing:
            raise NumbersNotRead(f"the numbers of {name} are not read: they are compressed in {chunk.file}")
        self._located[i] = info
        return info

    def _read_chunk(self, files: Files, i: int, first: int, last: int, name: str) -> bytes:
        """Rows first:last of one chunk."""
        info = self._find(files, i, name)
        if not info.shape:
            return files.read(info.file, info.begin, info.end)
        begin, end = dtypes.row_range(info.dtype, info.shape, first, last)
        if info.strides is not None:
            return self._as_row_major(files, i, info, name)[begin:end].tobytes()
        return files.read(info.file, info.begin + begin, info.begin + end)

    def _as_row_major(self, files: Files, i: int, info: TensorInfo, name: str) -> memoryview:
        """A strided chunk in row-major order. The last one is kept, because a strided chunk must be read whole."""
        if i not in self._row_major:
            unsigned = _UNSIGNED.get(dtypes.BITS[info.dtype])
            if unsigned is None or info.strides is None:
                raise NumbersNotRead(
                    f"the numbers of {name} are not read: it is {info.dtype} and not in row-major order"
                )
            raw = files.read(info.file, info.begin, info.end)
            self._row_major.clear()
            self._row_major[i] = memoryview(dtypes.decode_strided(unsigned, raw, info.shape, info.strides).tobytes())
        return self._row_major[i]


def _rows_of(chunk: Chunk) -> tuple[int, int]:
    return (chunk.offsets[0], chunk.offsets[0] + chunk.sizes[0]) if chunk.sizes else (0, 1)


def join_chunks(files: Files, dtype: str, grid: tuple[int, ...], chunks: Iterable[Chunk], label: str) -> ShardedTensor:
    """The tensor that the chunks form, checked to fill its grid; `label` names it in messages."""
    if dtypes.BITS[dtype] % 8:
        return ShardedTensor(dtype, grid, unreadable=f"shards of {dtype}, which takes less than a byte, are not joined")
    listed = sorted((p for p in chunks if prod(p.sizes)), key=lambda chunk: chunk.offsets)
    for chunk in listed:
        fits = len(chunk.offsets) == len(chunk.sizes) == len(grid)
        if not fits or any(o < 0 or o + n > most for o, n, most in zip(chunk.offsets, chunk.sizes, grid, strict=True)):
            raise UnreadableInput(
                f"{label} is {list(grid)}, and a shard of {list(chunk.sizes)} at {list(chunk.offsets)} exceeds it"
            )
    held, wanted = sum(prod(chunk.sizes) for chunk in listed), prod(grid)
    if held != wanted or not (_is_mesh(listed) or _disjoint(listed, label)):
        trouble = f"{wanted - held:,} of its {wanted:,} numbers are missing" if held < wanted else "its shards overlap"
        raise UnreadableInput(f"{label} is incomplete: {trouble}; was the shard of every rank saved and copied?")
    tensor = ShardedTensor(dtype, grid, tuple(listed))
    if wanted * dtypes.BITS[dtype] // 8 > sum(map(files.size, tensor.files)):
        raise UnreadableInput(
            f"{label} is {dtype} {list(grid)}, which is more than its files hold; the files are truncated"
        )
    return tensor


def _is_mesh(chunks: list[Chunk]) -> bool:
    """Whether the boxes are a regular mesh: every combination of disjoint ranges along each dimension."""
    combinations = 1
    for axis in range(len(chunks[0].sizes) if chunks else 0):
        ranges = sorted({(chunk.offsets[axis], chunk.sizes[axis]) for chunk in chunks})
        if any(begin + size > after for (begin, size), (after, _) in pairwise(ranges)):
            return False
        combinations *= len(ranges)
    return len({chunk.offsets for chunk in chunks}) == len(chunks) == combinations or not chunks


def _disjoint(chunks: list[Chunk], label: str) -> bool:
    """Whether no two boxes overlap. In row order, a box can only overlap boxes that begin before it ends."""
    left = _COMPARISONS * len(chunks) + 1000
    for i, chunk in enumerate(chunks):
        bottom = _rows_of(chunk)[1]
        for j in range(i + 1, len(chunks)):
            other = chunks[j]
            if _rows_of(other)[0] >= bottom:
                break
            left -= 1
            if left < 0:
                raise UnreadableInput(f"{label} has {len(chunks):,} shards that do not form a mesh; refusing to read")
            if all(
                o < other_o + other_n and other_o < o + n
                for o, n, other_o, other_n in zip(chunk.offsets, chunk.sizes, other.offsets, other.sizes, strict=True)
            ):
                return False
    return True


class TensorTable:
    """Sharded tensors by name. Two names for the same chunks become two names for one storage."""

    def __init__(self) -> None:
        self.tensors: dict[str, TensorInfo] = {}
        self.sharded: dict[str, ShardedTensor] = {}
        self._keys: dict[tuple[object, ...], str] = {}

    def add(self, name: str, shape: tuple[int, ...], tensor: ShardedTensor) -> None:
        key = f"the shards of {name}"
        if tensor.chunks:
            key = self._keys.setdefault((tensor.dtype, *tensor.identity), key)
        self.sharded.setdefault(key, tensor)
        size = dtypes.nbytes(tensor.dtype, shape)
        if size is None:
            raise UnreadableInput(f"{name!r} is {tensor.dtype} {list(shape)}, which does not fill whole bytes")
        file = tensor.chunks[0].file if tensor.chunks else ""
        self.tensors[name] = TensorInfo(name, shape, tensor.dtype, file, 0, size, None, key)


class FileSlice:
    """A byte range of a file as a file of its own, for readers that expect a whole file. Implements `Files`."""

    def __init__(self, files: Files, name: str, begin: int, end: int) -> None:
        self._files, self._name, self._begin, self._end = files, name, begin, end

    def names(self) -> list[str]:
        return [self._name]

    def folders(self) -> list[str]:
        return []

    def size(self, name: str) -> int:
        return self._end - self._begin

    def head(self, name: str, count: int) -> tuple[int, bytes]:
        return self.size(name), self.read(name, 0, min(count, self.size(name)))

    def read(self, name: str, begin: int, end: int) -> bytes:
        if end > self.size(name):
            raise UnreadableInput(f"{self._name}: byte {end:,} was expected in a range of {self.size(name):,} bytes")
        return self._files.read(self._name, self._begin + begin, self._begin + end)
