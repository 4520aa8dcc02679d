"""Train/validation split by document hash.

A document is held out when the hash of its first chunk, read as a fraction, is below the validation fraction. Copies of
a document therefore get the same split, and adding, removing, renaming or reordering documents moves no other one.
There is one exception: if a split would be empty, one document is moved to it. A corpus of a single document is cut,
and its end is held out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from tiebeam.corpus.text_chunks import TextChunk

SplitName = Literal["train", "val"]
SPLITS: tuple[SplitName, SplitName] = ("train", "val")


def document_hash(chunk: TextChunk) -> int:
    """64-bit hash of the document that this chunk starts."""
    return int.from_bytes(hashlib.blake2b(chunk.text.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class Split:
    """Validation below the threshold, except for one document moved into an empty split."""

    threshold: int
    moved: int | None = None  # hash of the document that changes split
    cut_at: int | None = None  # byte at which a single document is cut; then the hash is not used

    def assign(self, chunks: Iterable[TextChunk]) -> Iterator[tuple[SplitName, TextChunk]]:
        """Yield each chunk with its split."""
        if self.cut_at is not None:
            yield from self._cut(chunks, self.cut_at)
            return
        split: SplitName = "train"
        for chunk in chunks:
            if chunk.starts_document:
                hashed = document_hash(chunk)
                split = "val" if (hashed < self.threshold) != (hashed == self.moved) else "train"
            yield split, chunk

    @staticmethod
    def _cut(chunks: Iterable[TextChunk], cut_at: int) -> Iterator[tuple[SplitName, TextChunk]]:
        done = 0
        split: SplitName = "train"
        for chunk in chunks:
            size = len(chunk.text.encode())
            if split == "train" and done + size > cut_at:
                split = "val"
                head, rest = _cut_near(chunk.text, cut_at - done, at_least=int(done == 0))
                if head:
                    yield "train", TextChunk(head, chunk.starts_document)
                yield "val", TextChunk(rest, True)
            else:
                yield split, chunk
            done += size


def _cut_near(text: str, position: int, at_least: int) -> tuple[str, str]:
    """Cut near `position` (bytes): after a line if one ends just before it, else after a word, else exactly there."""
    end = len(text.encode()[:position].decode(errors="ignore"))
    for mark in ("\n", " "):
        nearest = text.rfind(mark, max(0, end - 4096), end) + 1
        if 0 < nearest < len(text):
            return text[:nearest], text[nearest:]
    end = min(max(end, at_least), len(text) - 1)
    return text[:end], text[end:]


@dataclass
class SplitCounter:
    """Counts documents and bytes in the first pass, then decides the split."""

    threshold: int
    documents: int = 0
    bytes: int = 0
    held_out: set[bool] = field(default_factory=set)  # which of the two outcomes occurred
    sizes: dict[int, int] = field(default_factory=dict)  # bytes by document hash, kept only while one split is empty
    _hash: int = 0

    def add(self, chunk: TextChunk) -> None:
        size = len(chunk.text.encode())
        self.bytes += size
        if chunk.starts_document:
            self.documents += 1
            self._hash = document_hash(chunk)
            self.held_out.add(self._hash < self.threshold)
        if len(self.held_out) == 1:
            self.sizes[self._hash] = self.sizes.get(self._hash, 0) + size

    def merge(self, other: SplitCounter) -> None:
        self.documents += other.documents
        self.bytes += other.bytes
        self.held_out |= other.held_out
        for hashed, size in other.sizes.items() if len(self.held_out) == 1 else ():
            self.sizes[hashed] = self.sizes.get(hashed, 0) + size

    def decide(self, fraction: float) -> Split:
        if len(self.held_out) == 2:
            return Split(self.threshold)
        if len(self.sizes) == 1:
            return Split(self.threshold, cut_at=self.bytes - max(1, round(self.bytes * fraction)))
        if True in self.held_out:  # everything is held out: move the largest document to train
            return Split(self.threshold, moved=max(self.sizes, key=lambda hashed: (self.sizes[hashed], hashed)))
        at_most_half = [hashed for hashed, size in self.sizes.items() if 2 * size <= self.bytes]
        return Split(self.threshold, moved=min(at_most_half))
