"""Read a packed artifact (.tbp; the layout is in artifact.py), one block at a time.

An artifact is untrusted. The header is checked completely before the body is touched: the stored sizes follow from
the shapes, lie one after the other, and add up to the declared size, which must be plausible for the compressed bytes.
The body is then decompressed, decoded and written in blocks, so that memory does not depend on the size of the model.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebeam.checkpoint.dtypes import is_shape
from tiebeam.checkpoint.json_files import parse_json
from tiebeam.checkpoint.write.copy_bytes import Made, write_files
from tiebeam.checkpoint.write.safetensors import Entry, layout
from tiebeam.errors import UnreadableInput
from tiebeam.limits import (
    MAX_ARTIFACT_BODY,
    MAX_ARTIFACT_HEADER,
    MAX_ARTIFACT_RATIO,
    MAX_ARTIFACT_ROWS,
    MAX_NAME,
    MAX_ZEROS_IN_ARTIFACT,
    MAX_ZSTD_WINDOW,
)
from tiebeam.train.artifact import IN_VERSION_2, MAGIC, MAGIC_2, PRECISIONS, stored_size

_BLOCK = 1 << 20


class PackedTensor(NamedTuple):
    """One tensor in the body."""

    name: str
    shape: tuple[int, ...]
    precision: str

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of an artifact: dequantized tensors, and the text files of the checkpoint."""

    tensors: dict[str, NDArray[np.float32]]
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class Artifact:
    """The checked header of an artifact. The tensors are in the order of the body."""

    path: Path
    tensors: tuple[PackedTensor, ...]
    files: dict[str, str]
    compression: str
    body: int
    """First byte of the compressed body."""

    def read(self) -> Contents:
        """Everything, in memory."""
        with _Body(self) as body:
            tensors = {
                tensor.name: np.concatenate([*_values(tensor, body), np.empty(0, np.float32)]).reshape(tensor.shape)
                for tensor in self.tensors
            }
            body.check_end()
        return Contents(tensors, self.files)

    def write_safetensors(self, target: Path) -> None:
        """Write the tensors as float32, block by block."""
        with _Body(self) as body:
            entries = [Entry(t.name, "F32", t.shape, Made(4 * t.size, _blocks(t, body))) for t in self.tensors]
            write_files([(target, layout(entries, {"format": "pt"}))])
            body.check_end()


def unpack(path: str | os.PathLike[str]) -> Contents:
    """The tensors and files of an artifact, all in memory."""
    return open_artifact(path).read()


def open_artifact(path: str | os.PathLike[str]) -> Artifact:
    """Read and check the header; nothing is decompressed."""
    where = Path(path)
    try:
        if not where.is_file():  # a FIFO would block
            raise UnreadableInput(f"{where} is not a file" if where.exists() else f"{where} does not exist")
        with open(where, "rb") as handle:
            total = os.fstat(handle.fileno()).st_size
            start = handle.read(16)
            if len(start) < 16 or not start.startswith((MAGIC, MAGIC_2)):
                raise UnreadableInput(f"{where} is not an artifact of `tiebeam pack`: its magic bytes are wrong")
            (length,) = struct.unpack_from("<Q", start, 8)
            if length > min(MAX_ARTIFACT_HEADER, total - 16):
                raise UnreadableInput(
                    f"{where} is damaged: header length {length:,} exceeds the file, or the limit of "
                    f"{MAX_ARTIFACT_HEADER:,}"
                )
            raw = handle.read(length)
    except OSError as error:
        raise UnreadableInput(f"{where} cannot be read: {error.strerror or error}") from None
    header = parse_json(raw, f"the header of {where}")
    try:
        known = PRECISIONS.keys() - (frozenset() if start.startswith(MAGIC_2) else IN_VERSION_2)
        tensors = _tensors(header.get("tensors"), header.get("size"), total - 16 - length, known)
        files, compression = header.get("files"), header.get("compression")
        if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
            raise ValueError("its files are not texts by name")
        if compression not in ("zlib", "zstd"):
            raise ValueError(f"compression {compression!r} is not supported")
    except ValueError as error:
        raise UnreadableInput(f"{where} is damaged: {error}") from None
    return Artifact(where, tensors, files, compression, 16 + length)


def _tensors(entries: object, size: object, compressed: int, known: Set[str]) -> tuple[PackedTensor, ...]:
    """The entries, checked to fill a body of `size` bytes in order, and that size to be plausible."""
    if not isinstance(entries, list) or type(size) is not int or not 0 <= size <= MAX_ARTIFACT_BODY:
        raise ValueError(f"it has no list of tensors, or the size {size!r} exceeds the limit of {MAX_ARTIFACT_BODY:,}")
    if size > max(MAX_ZEROS_IN_ARTIFACT, MAX_ARTIFACT_RATIO * compressed):
        raise ValueError(
            f"the body should inflate from {compressed:,} to {size:,} bytes, which exceeds the limit of "
            f"{MAX_ARTIFACT_RATIO} times; refusing to read"
        )
    tensors, at = [], 0
    for entry in entries:
        tensor = _tensor(entry, known)
        end = at + stored_size(tensor.precision, tensor.shape)
        if entry.get("range") != [at, end]:
            raise ValueError(f"{tensor.name!r} is not at bytes {at:,} to {end:,}, where its shape puts it")
        tensors.append(tensor)
        at = end
    if at != size:
        raise ValueError(f"its tensors take {at:,} bytes, and the header declares {size:,}")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        names = sorted(tensor.name for tensor in tensors)
        raise ValueError(f"it has two tensors called {next(a for a, b in pairwise(names) if a == b)!r}")
    return tuple(tensors)


def _tensor(entry: Any, known: Set[str]) -> PackedTensor:
    name, shape, precision = (entry.get(k) if isinstance(entry, dict) else None for k in ("name", "shape", "precision"))
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or name == "__metadata__":
        raise ValueError("a tensor has no usable name")
    if not isinstance(precision, str) or precision not in known:
        raise ValueError(f"{name!r} has an unknown precision")
    if (
        not isinstance(shape, list)
        or not is_shape(shape)
        or (PRECISIONS[precision] and not (len(shape) == 2 and shape[0] <= MAX_ARTIFACT_ROWS and shape[1]))
    ):
        raise ValueError(f"{name!r} has a shape that no {precision} tensor can have")
    return PackedTensor(name, tuple(shape), precision)


class _Body:
    """The decompressed body, read forwards in blocks of at most `_BLOCK` bytes."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._handle: IO[bytes] = open(artifact.path, "rb")  # noqa: SIM115 - closed by __exit__
        self._handle.seek(artifact.body)
        self._stream: Any = None
        self._error: type[Exception] = zlib.error
        if artifact.compression == "zlib":
            self._stream, self._waiting = zlib.decompressobj(), b""
            return
        try:
            import zstandard
        except ImportError:
            self._handle.close()
            raise UnreadableInput(
                f"{artifact.path} is compressed with zstd; install it with: pip install zstandard"
            ) from None
        self._error = zstandard.ZstdError
        self._stream = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW).stream_reader(self._handle)

    def __enter__(self) -> _Body:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def read(self, count: int) -> bytes:
        """Exactly `count` bytes, or an error."""
        parts = []
        while count:
            part = self._next(min(count, _BLOCK))
            if not part:
                raise self._damaged("its body is truncated")
            parts.append(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def check_end(self) -> None:
        """The compressed stream must end here, with its checksum, and the file with it."""
        if self._next(1) or self._handle.read(1) or (self._artifact.compression == "zlib" and not self._ended()):
            raise self._damaged("its body is longer than its tensors, or does not end")

    def _ended(self) -> bool:
        return bool(self._stream.eof) and not self._stream.unused_data

    def _next(self, most: int) -> bytes:
        """The next bytes, at most that many; none at the end of the stream."""
        try:
            if self._artifact.compression == "zstd":
                return bytes(self._stream.read(most))
            while not self._stream.eof:
                self._waiting = self._waiting or self._handle.read(_BLOCK)
                if not self._waiting:
                    break
                block: bytes = self._stream.decompress(self._waiting, most)
                self._waiting = self._stream.unconsumed_tail
                if block:
                    return block
            return b""
        except OSError as error:
            raise UnreadableInput(f"{self._artifact.path} cannot be read: {error.strerror or error}") from None
        except self._error as error:
            raise self._damaged(str(error)) from None

    def _damaged(self, why: str) -> UnreadableInput:
        return UnreadableInput(f"{self._artifact.path} is damaged: {why}")


def _blocks(tensor: PackedTensor, body: _Body) -> Callable[[], Iterator[memoryview]]:
    return lambda: (block.astype("<f4").data for block in _values(tensor, body))


def _values(tensor: PackedTensor, body: _Body) -> Iterator[NDArray[np.float32]]:
    """The numbers of the next tensor in the body, flat, block by block."""
    size, stored = tensor.size, {"fp16": "<f2", "fp32": "<f4"}.get(tensor.precision, "i1")
    scales = np.empty(0, np.float32)
    if PRECISIONS[tensor.precision]:
        scales = np.frombuffer(body.read(2 * tensor.shape[0]), "<f2").astype(np.float32)
    for start in range(0, size, _BLOCK):
        count = min(_BLOCK, size - start)
        values = np.frombuffer(body.read(count * np.dtype(stored).itemsize), stored).astype(np.float32)
        if len(scales):
            values *= scales[np.arange(start, start + count) // tensor.shape[1]]
        yield values
