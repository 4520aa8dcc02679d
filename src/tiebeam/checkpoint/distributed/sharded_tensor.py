"""A tensor in pieces: one block of it from each of several places, put together only where someone reads.

Training over several processes saves what each of them held: some rows, some columns, some stretch of a flattened
buffer. Each piece is a box of a grid (the tensor's own shape, or its elements in a line), and all of them together
must fill the grid exactly, which is proved before a number is believed. What of a box lies in consecutive rows of the
grid lies together in its file too, so reading rows touches only the pieces that hold them.

Where a tree of files tells the shapes but not the numbers, the tensor has no pieces and says why.
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

_COMPARISONS = 16  # for each piece, with its neighbours, where the cut is not a plain mesh
_UNSIGNED = {8: "U8", 16: "U16", 32: "U32", 64: "U64"}


class Piece(NamedTuple):
    """A box of the grid, and how to find its numbers: a dense or strided tensor of just that shape in one file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    locate: Callable[[Files], TensorInfo]
    identity: tuple[object, ...]
    """Equal for two pieces exactly when they are the same bytes."""


@dataclass(frozen=True)
class Pieced:
    """The pieces of one tensor over its grid, in row order; `why` it cannot be read, where it cannot."""

    dtype: str
    grid: tuple[int, ...]
    pieces: tuple[Piece, ...] = ()
    why: str = ""
    _found: dict[int, TensorInfo] = field(default_factory=dict, compare=False, repr=False)
    _turned: dict[int, memoryview] = field(default_factory=dict, compare=False, repr=False)

    @property
    def files(self) -> set[str]:
        return {piece.file for piece in self.pieces}

    @property
    def identity(self) -> tuple[object, ...]:
        return tuple((piece.offsets, piece.identity) for piece in self.pieces)

    @cached_property
    def _extents(self) -> tuple[list[int], list[int]]:
        """Where each piece begins, and the last row that it or one before it reaches: both grow, to be searched in."""
        rows = [_rows_of(piece) for piece in self.pieces]
        return [top for top, _ in rows], list(accumulate((bottom for _, bottom in rows), max))

    def read(self, files: Files, begin: int, end: int, name: str) -> bytes:
        """Bytes begin:end of the whole tensor, laid out row after row."""
        if self.why:
            raise NumbersNotRead(f"the numbers of {name} are not read: {self.why}")
        if begin == end:
            return b""
        itemsize = dtypes.BITS[self.dtype] // 8
        per_row = prod(self.grid[1:]) * itemsize
        first, last = begin // per_row, -(-end // per_row)
        raw = self._rows(files, first, last, name)
        return raw[begin - first * per_row : end - first * per_row]

    def _rows(self, files: Files, first: int, last: int, name: str) -> bytes:
        """Rows first:last of the grid (a scalar is one row)."""
        tops, reached = self._extents
        wanted = [
            (i, self.pieces[i], *_rows_of(self.pieces[i]))
            for i in range(bisect_right(reached, first), bisect_left(tops, last))
            if _rows_of(self.pieces[i])[1] > first
        ]
        full_width = all(piece.sizes[1:] == self.grid[1:] for _, piece, _, _ in wanted)
        if full_width:
            return b"".join(
                self._read_piece(files, i, max(first, top) - top, min(last, bottom) - top, name)
                for i, _, top, bottom in wanted
            )
        for i, _, _, _ in wanted:  # before room is made for them
            self._find(files, i, name)
        import numpy as np

        itemsize = dtypes.BITS[self.dtype] // 8
        whole = np.empty((last - first, *self.grid[1:], itemsize), np.uint8)
        for i, piece, top, bottom in wanted:
            low, high = max(first, top), min(last, bottom)
            raw = self._read_piece(files, i, low - top, high - top, name)
            box = tuple(slice(o, o + n) for o, n in zip(piece.offsets[1:], piece.sizes[1:], strict=True))
            block = np.frombuffer(raw, np.uint8).reshape(high - low, *piece.sizes[1:], itemsize)
            whole[(slice(low - first, high - first), *box)] = block
        return whole.tobytes()

    def _find(self, files: Files, i: int, name: str) -> TensorInfo:
        """Where a piece's numbers are, looked up once."""
        info = self._found.get(i)
        if info is not None:
            return info
        piece = self.pieces[i]
        info = piece.locate(files)
        if info.shape != piece.sizes or info.dtype != self.dtype:
            raise UnreadableInput(
                f"{piece.file} holds {info.dtype} {list(info.shape)} for a piece of {name!r} that should be "
                f"{self.dtype} {list(piece.sizes)}; it is damaged, or from another save"
            )
        if info.packing:
            raise NumbersNotRead(f"the numbers of {name} are not read: they are compressed in {piece.file}")
        self._found[i] = info
        return info

    def _read_piece(self, files: Files, i: int, first: int, last: int, name: str) -> bytes:
        """Rows first:last of one piece."""
        info = self._find(files, i, name)
        if not info.shape:
            return files.read(info.file, info.begin, info.end)
        begin, end = dtypes.row_range(info.dtype, info.shape, first, last)
        if info.strides is not None:
            return self._turn(files, i, info, name)[begin:end].tobytes()
        return files.read(info.file, info.begin + begin, info.begin + end)

    def _turn(self, files: Files, i: int, info: TensorInfo, name: str) -> memoryview:
        """A piece that is not laid out by rows, laid out so; kept, one at a time, because it has no rows to seek to."""
        if i not in self._turned:
            unsigned = _UNSIGNED.get(dtypes.BITS[info.dtype])
            if unsigned is None or info.strides is None:
                raise NumbersNotRead(f"the numbers of {name} are not read: {info.dtype} that is not laid out by rows")
            raw = files.read(info.file, info.begin, info.end)
            self._turned.clear()
            self._turned[i] = memoryview(dtypes.decode_strided(unsigned, raw, info.shape, info.strides).tobytes())
        return self._turned[i]


def _rows_of(piece: Piece) -> tuple[int, int]:
    return (piece.offsets[0], piece.offsets[0] + piece.sizes[0]) if piece.sizes else (0, 1)


def put_together(files: Files, dtype: str, grid: tuple[int, ...], pieces: Iterable[Piece], label: str) -> Pieced:
    """The tensor that the pieces make, proved to fill its grid; `label` is what a person calls it."""
    if dtypes.BITS[dtype] % 8:
        return Pieced(dtype, grid, why=f"{dtype} takes less than a byte, and pieces of such are not put together here")
    listed = sorted((p for p in pieces if prod(p.sizes)), key=lambda piece: piece.offsets)
    for piece in listed:
        fits = len(piece.offsets) == len(piece.sizes) == len(grid)
        if not fits or any(o < 0 or o + n > most for o, n, most in zip(piece.offsets, piece.sizes, grid, strict=True)):
            raise UnreadableInput(
                f"{label} is {list(grid)}, and a piece of {list(piece.sizes)} at {list(piece.offsets)} sticks out of it"
            )
    held, wanted = sum(prod(piece.sizes) for piece in listed), prod(grid)
    if held != wanted or not (_is_mesh(listed) or _apart(listed, label)):
        trouble = f"{wanted - held:,} of its {wanted:,} numbers are missing" if held < wanted else "its pieces overlap"
        raise UnreadableInput(f"{label} is incomplete: {trouble}; was every process's part saved and copied?")
    pieced = Pieced(dtype, grid, tuple(listed))
    if wanted * dtypes.BITS[dtype] // 8 > sum(map(files.size, pieced.files)):
        raise UnreadableInput(f"{label} is {dtype} {list(grid)}, which is more than its files hold; they are truncated")
    return pieced


def _is_mesh(pieces: list[Piece]) -> bool:
    """Whether the boxes are every combination of stretches that lie apart along each dimension, as processes cut."""
    combinations = 1
    for axis in range(len(pieces[0].sizes) if pieces else 0):
        stretches = sorted({(piece.offsets[axis], piece.sizes[axis]) for piece in pieces})
        if any(begin + size > after for (begin, size), (after, _) in pairwise(stretches)):
            return False
        combinations *= len(stretches)
    return len({piece.offsets for piece in pieces}) == len(pieces) == combinations or not pieces


def _apart(pieces: list[Piece], label: str) -> bool:
    """Whether no two boxes overlap. In row order, a box can only meet those that begin before it ends."""
    left = _COMPARISONS * len(pieces) + 1000
    for i, piece in enumerate(pieces):
        bottom = _rows_of(piece)[1]
        for j in range(i + 1, len(pieces)):
            other = pieces[j]
            if _rows_of(other)[0] >= bottom:
                break
            left -= 1
            if left < 0:
                raise UnreadableInput(f"{label} is cut into {len(pieces):,} pieces that no mesh of processes makes")
            if all(
                o < other_o + other_n and other_o < o + n
                for o, n, other_o, other_n in zip(piece.offsets, piece.sizes, other.offsets, other.sizes, strict=True)
            ):
                return False
    return True


class Table:
    """Names for pieced tensors: two names for the same pieces become two names for one storage."""

    def __init__(self) -> None:
        self.tensors: dict[str, TensorInfo] = {}
        self.pieced: dict[str, Pieced] = {}
        self._keys: dict[tuple[object, ...], str] = {}

    def add(self, name: str, shape: tuple[int, ...], pieced: Pieced) -> None:
        key = f"the pieces of {name}"
        if pieced.pieces:
            key = self._keys.setdefault((pieced.dtype, *pieced.identity), key)
        self.pieced.setdefault(key, pieced)
        size = dtypes.nbytes(pieced.dtype, shape)
        if size is None:
            raise UnreadableInput(f"{name!r} is {pieced.dtype} {list(shape)}, which does not fill whole bytes")
        file = pieced.pieces[0].file if pieced.pieces else ""
        self.tensors[name] = TensorInfo(name, shape, pieced.dtype, file, 0, size, None, key)


class Slice:
    """A stretch of a file as a file of its own: what lies inside is read by the rules of whole files."""

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
            raise UnreadableInput(f"{self._name}: byte {end:,} of a part of {self.size(name):,} was expected")
        return self._files.read(self._name, self._begin + begin, self._begin + end)
