"""Which documents are held out: decided by each document's own text, so that nothing else can move it.

A document goes to validation when the hash of its first piece, read as a fraction, is below the fraction asked for.
Copies of a document therefore land on the same side, and adding, removing, renaming or reordering others moves none,
with one exception: when chance leaves a side empty, one document is moved there. A corpus that is a single document
is cut instead, and its end held out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from tiebeam.corpus.text_sources import Piece

Side = Literal["train", "val"]
SIDES: tuple[Side, Side] = ("train", "val")


def place_of(piece: Piece) -> int:
    """Where the document that this piece opens stands in the order of hashes, 0 .. 2**64."""
    return int.from_bytes(hashlib.blake2b(piece.text.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class Split:
    """The rule: validation below the threshold, apart from one document moved to fill an empty side."""

    threshold: int
    moved: int | None = None  # the place of the document that changes sides
    tail: int | None = None  # the byte at which a single document is cut; the rest of the rule is void then

    def sides(self, pieces: Iterable[Piece]) -> Iterator[tuple[Side, Piece]]:
        """Each piece with its side."""
        if self.tail is not None:
            yield from self._cut(pieces, self.tail)
            return
        side: Side = "train"
        for piece in pieces:
            if piece.first:
                place = place_of(piece)
                side = "val" if (place < self.threshold) != (place == self.moved) else "train"
            yield side, piece

    @staticmethod
    def _cut(pieces: Iterable[Piece], tail: int) -> Iterator[tuple[Side, Piece]]:
        done = 0
        side: Side = "train"
        for piece in pieces:
            size = len(piece.text.encode())
            if side == "train" and done + size > tail:
                side = "val"
                head, rest = _cut_at(piece.text, tail - done, at_least=int(done == 0))
                if head:
                    yield "train", Piece(head, piece.first)
                yield "val", Piece(rest, True)
            else:
                yield side, piece
            done += size


def _cut_at(text: str, place: int, at_least: int) -> tuple[str, str]:
    """The text cut near `place` bytes: after a line if one ends just before, else after a word, else right there."""
    end = len(text.encode()[:place].decode(errors="ignore"))
    for mark in ("\n", " "):
        nearest = text.rfind(mark, max(0, end - 4096), end) + 1
        if 0 < nearest < len(text):
            return text[:nearest], text[nearest:]
    end = min(max(end, at_least), len(text) - 1)
    return text[:end], text[end:]


@dataclass
class Census:
    """Counts documents as they pass, then settles the split."""

    threshold: int
    documents: int = 0
    bytes: int = 0
    sides: set[bool] = field(default_factory=set)
    sizes: dict[int, int] = field(default_factory=dict)  # bytes by place, kept only while one side is empty
    _place: int = 0

    def add(self, piece: Piece) -> None:
        size = len(piece.text.encode())
        self.bytes += size
        if piece.first:
            self.documents += 1
            self._place = place_of(piece)
            self.sides.add(self._place < self.threshold)
        if len(self.sides) == 1:
            self.sizes[self._place] = self.sizes.get(self._place, 0) + size

    def merge(self, other: Census) -> None:
        self.documents += other.documents
        self.bytes += other.bytes
        self.sides |= other.sides
        for place, size in other.sizes.items() if len(self.sides) == 1 else ():
            self.sizes[place] = self.sizes.get(place, 0) + size

    def settle(self, fraction: float) -> Split:
        if len(self.sides) == 2:
            return Split(self.threshold)
        if len(self.sizes) == 1:
            return Split(self.threshold, tail=self.bytes - max(1, round(self.bytes * fraction)))
        if True in self.sides:  # all held out: the largest goes back to train
            return Split(self.threshold, moved=max(self.sizes, key=lambda place: (self.sizes[place], place)))
        modest = [place for place, size in self.sizes.items() if 2 * size <= self.bytes]
        return Split(self.threshold, moved=min(modest))
