"""Files behind a network, read by range: what a repository on the Hub and a bucket have in common.

The first bytes of every file are kept, so that a header takes one request if its length can be estimated; rows are
read on demand. Nothing is written to disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.hub.http_ranges import Reply
from tiebeam.checkpoint.model_files import FileSet
from tiebeam.errors import UnreadableInput

_FIRST = 1 << 16  # if the header length cannot be estimated
_FIRST_READ_JSON = 1 << 20
_CONNECTIONS = 8


class FoundModel(NamedTuple):
    """The files of a model that is not a path on disk, and which of them make the model."""

    files: Files
    names: list[str]
    fileset: FileSet
    notes: tuple[str, ...] = ()


class RemoteFiles(ABC):
    """Implements reading of `Files` over `_fetch`; usable from threads."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[int, bytes]] = {}
        self._expected: dict[str, int] = {}

    @abstractmethod
    def _fetch(self, name: str, begin: int, end: int) -> Reply:
        """Bytes begin:end of a file (fewer at its end) in one request, and the size of the file."""

    @abstractmethod
    def _label(self, name: str) -> str:
        """The file's name for messages."""

    def size(self, name: str) -> int:
        return self.head(name, 0)[0]

    def head(self, name: str, count: int) -> tuple[int, bytes]:
        if name not in self._heads:
            guess = self._expected.get(name) or (_FIRST_READ_JSON if name.endswith(".json") else _FIRST)
            reply = self._fetch(name, 0, max(count, guess))
            self._heads[name] = reply.total, reply.data
        return self._heads[name]

    def read(self, name: str, begin: int, end: int) -> bytes:
        size, data = self.head(name, 0)
        if end > size:
            raise UnreadableInput(f"{self._label(name)} ends at byte {size:,}; {end:,} were expected")
        if begin >= end or end <= len(data):
            return data[begin:end]
        reply = self._fetch(name, begin, end)
        data = reply.data[begin - reply.begin : end - reply.begin]
        if len(data) != end - begin or reply.total != size:
            raise UnreadableInput(f"{self._label(name)} changed while it was read; try again")
        return data

    def prefetch(self, expected: Mapping[str, int]) -> None:
        """Read the first bytes of many files in parallel; `expected` is the estimated number for each (0: unknown)."""
        self._expected.update(expected)
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(_CONNECTIONS)
        try:
            for _ in pool.map(self.size, expected):
                pass
        finally:
            pool.shutdown(cancel_futures=True)

    def prefetch_headers(self, fileset: FileSet, names: list[str]) -> None:
        """Read config.json and the header of every shard in parallel."""
        expected = _header_sizes(fileset)
        if "config.json" in names:
            expected["config.json"] = 0
        self.prefetch(expected)


def _header_sizes(fileset: FileSet) -> dict[str, int]:
    """Estimated header length of each shard, from the tensor names that the index lists for it.

    Most of a header is its entries: the name and about 100 characters of type, shape and offsets.
    """
    sizes = dict.fromkeys(fileset.shards, 0)
    if fileset.format == "safetensors":
        for name, shard in fileset.weight_map.items():
            sizes[shard] += len(name) + 120
    return {shard: size + 512 if size else 0 for shard, size in sizes.items()}
