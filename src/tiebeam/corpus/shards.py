"""Token shards on disk in parameter-golf's format, read through memory maps.

A shard is a header of 256 little-endian int32, [20240520, version, tokens, 0 ...], then the tokens: uint16 in
version 1, identical to parameter-golf's, and uint32 in version 2, our extension for vocabularies above 65,536. A split
is any number of shards in name order. Shards are untrusted: the header must agree with the file size, and every token
that is read must be below the vocabulary.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tiebeam.errors import UnreadableInput

Tokens = npt.NDArray[Any]  # uint16 or uint32, [N]

MAGIC = 20240520
HEADER = np.dtype("<i4").itemsize * 256
DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<u2"), 2: np.dtype("<u4")}
SHARD_TOKENS = 100_000_000


def token_dtype(vocab: int) -> np.dtype[Any]:
    return DTYPES[1 if vocab <= 1 << 16 else 2]


def open_shard(path: Path) -> Tokens:  # [N]
    """Memory-map the tokens of one shard; nothing is read until it is used."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a FIFO would block
            raise UnreadableInput(f"{path} is not a regular file")
        size = status.st_size
        with open(path, "rb") as handle:
            header = np.frombuffer(handle.read(HEADER), dtype="<i4") if size >= HEADER else np.zeros(3, "<i4")
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {error.strerror or error}") from None
    magic, version, count = (int(value) for value in header[:3])
    if magic != MAGIC:
        raise UnreadableInput(f"{path} is not a token shard: its magic number is {magic}, not {MAGIC}")
    if version not in DTYPES:
        raise UnreadableInput(f"{path} is a token shard of version {version}; versions 1 and 2 are supported")
    dtype = DTYPES[version]
    expected = HEADER + count * dtype.itemsize
    if count < 0 or size != expected:
        raise UnreadableInput(
            f"{path} declares {count:,} tokens ({expected:,} bytes) but has {size:,} bytes; copy it again"
        )
    return np.memmap(path, dtype=dtype, mode="r", offset=HEADER, shape=(count,)) if count else np.empty(0, dtype)


class TokenStream:
    """One sequence of tokens over any number of shards: `len` and slices work as on an array."""

    def __init__(self, shards: Sequence[Tokens], vocab: int, name: str = "these tokens") -> None:
        self.shards = tuple(shard for shard in shards if len(shard))
        self.vocab = vocab
        self.name = name
        self.dtype = self.shards[0].dtype if self.shards else token_dtype(vocab)
        self._starts = np.cumsum([0, *(len(shard) for shard in self.shards)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, span: slice) -> Tokens:
        start, stop, step = span.indices(len(self))
        assert step == 1, "tokens are read in order"
        return self.read(start, max(start, stop))

    def read(self, start: int, stop: int) -> Tokens:  # [stop - start]
        """Read tokens start:stop across shards and check each against the vocabulary."""
        assert 0 <= start <= stop <= len(self), (start, stop, len(self))
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        parts = []
        for shard, begin in zip(self.shards[first:], self._starts[first:], strict=False):
            if begin >= stop:
                break
            parts.append(np.asarray(shard[max(0, start - begin) : stop - begin]))
        tokens = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, self.dtype)
        assert len(tokens) == stop - start
        if len(tokens) and int(tokens.max()) >= self.vocab:
            raise UnreadableInput(
                f"{self.name}: token {int(tokens.max()):,} is outside the vocabulary of {self.vocab:,}; "
                "the shards were made with another tokenizer or are damaged"
            )
        return tokens

    def chunks(self, size: int = 1 << 22) -> Iterator[Tokens]:
        """Yield all tokens in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.read(start, min(start + size, len(self)))

    def documents(self, boundary: int) -> Iterator[Tokens]:
        """Yield the tokens of each document, without the boundary token that starts it."""
        open_parts: list[Tokens] = []
        started = False
        for chunk in self.chunks():
            before, *after = np.split(chunk, np.flatnonzero(chunk == boundary))
            open_parts.append(before)
            for part in after:
                if started or any(len(held) for held in open_parts):
                    yield np.concatenate(open_parts)
                open_parts, started = [part[1:]], True
        if started or any(len(held) for held in open_parts):
            yield np.concatenate(open_parts)


class ShardWriter:
    """Appends tokens to <split>_000000.bin, <split>_000001.bin ... and can resume after an interruption.

    `flush()` makes everything so far durable and returns the number of tokens. A writer that starts at that number
    truncates whatever was written after it.
    """

    def __init__(
        self, directory: Path, split: str, vocab: int, start: int = 0, shard_tokens: int = SHARD_TOKENS
    ) -> None:
        assert 0 < shard_tokens < 1 << 31  # the header counts in int32
        self.directory, self.split, self.shard_tokens = directory, split, shard_tokens
        self.version = 1 if vocab <= 1 << 16 else 2
        self.dtype = DTYPES[self.version]
        self.total = start
        for stale in directory.glob(f"{split}_*.bin"):
            if int(stale.stem.rsplit("_", 1)[1]) > start // shard_tokens:
                stale.unlink()
        self._handle = self._open(start)

    def _open(self, total: int) -> Any:
        path = self.directory / f"{self.split}_{total // self.shard_tokens:06d}.bin"
        handle = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115 - open until the shard is complete
        handle.truncate(HEADER + total % self.shard_tokens * self.dtype.itemsize)
        handle.seek(0, os.SEEK_END)
        return handle

    def append(self, tokens: Tokens) -> None:
        while len(tokens):
            room = self.shard_tokens - self.total % self.shard_tokens
            part, tokens = tokens[:room], tokens[room:]
            self._handle.write(np.ascontiguousarray(part, dtype=self.dtype).data)
            self.total += len(part)
            if self.total % self.shard_tokens == 0:
                self._finish_shard(self.shard_tokens)
                self._handle = self._open(self.total)

    def _finish_shard(self, count: int) -> None:
        header = np.zeros(256, "<i4")
        header[:3] = MAGIC, self.version, count
        self._handle.seek(0)
        self._handle.write(header.data)
        self.flush()
        self._handle.close()

    @staticmethod
    def can_resume(directory: Path, split: str, vocab: int, start: int, shard_tokens: int = SHARD_TOKENS) -> bool:
        """Whether the first `start` tokens are on disk; a crash of the machine can lose what was written."""
        full, left = divmod(start, shard_tokens)
        try:
            whole = (len(open_shard(directory / f"{split}_{number:06d}.bin")) for number in range(full))
            last = directory / f"{split}_{full:06d}.bin"
            there = last.stat().st_size if left else HEADER
            return (
                all(count == shard_tokens for count in whole) and there >= HEADER + left * token_dtype(vocab).itemsize
            )
        except (OSError, UnreadableInput):
            return False

    def flush(self) -> int:
        self._handle.flush()
        os.fsync(self._handle.fileno())
        return self.total

    def close(self) -> list[Path]:
        """Write the last header and return the shards."""
        left = self.total % self.shard_tokens
        self._finish_shard(left)
        if left == 0 and self.total:
            Path(self._handle.name).unlink()
        return sorted(self.directory.glob(f"{self.split}_*.bin"))
