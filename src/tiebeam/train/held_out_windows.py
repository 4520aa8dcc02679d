"""The held-out windows of a run: the same ones at every check, and the document that each target belongs to.

A check on the whole held-out split would cost more than the training between two checks. So a run is checked on
windows that are evenly spaced over the split: the mean over them estimates the mean over the split, and as many
documents as possible are among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.corpus.batches import Batch, every_target

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus

FEW_DOCUMENTS, MANY_DOCUMENTS, SPANS = 8, 256, 32


class HeldOutWindows:
    """At most `max_tokens` held-out targets, in evenly spaced windows of `context` tokens; None is the whole split."""

    def __init__(self, corpus: Corpus, context: int, max_tokens: int | None = None) -> None:
        self.corpus, self.context = corpus, context
        targets = len(corpus.val) - 1
        self.whole = max_tokens is None or targets <= max_tokens
        windows = targets // context
        count = min(windows, max(1, (max_tokens or 0) // context))
        self.starts: NDArray[np.int64] = np.arange(count) * windows // max(1, count) * context  # [n]

    def batches(self, batch: int) -> Iterator[Batch]:  # x, y: [B, T]
        if self.whole:
            yield from every_target(self.corpus.val, batch, self.context)
            return
        for first in range(0, len(self.starts), batch):
            chosen = self.starts[first : first + batch]
            rows = np.stack([self.corpus.val.read(s, s + self.context + 1) for s in chosen.tolist()]).astype(np.int64)
            yield rows[:, :-1], rows[:, 1:]

    @cached_property
    def positions(self) -> NDArray[np.int64]:  # [N]
        """The index of every target in the held-out split, in the order of `batches`."""
        if self.whole:
            return np.arange(1, len(self.corpus.val))
        return (self.starts[:, None] + np.arange(1, self.context + 1)).reshape(-1)

    @cached_property
    def groups(self) -> NDArray[np.int64]:  # [N]
        """The document of every target, numbered from 0 without gaps.

        A text with few documents is cut into equal spans instead, and one with very many is grouped by window.
        """
        before = np.cumsum(np.asarray(self.corpus.val[:]) == self.corpus.boundary)  # a boundary starts a document
        _, document = np.unique(before[self.positions], return_inverse=True)
        number = int(document.max()) + 1
        if FEW_DOCUMENTS <= number <= MANY_DOCUMENTS:
            return document.astype(np.int64)
        spans = SPANS if number < FEW_DOCUMENTS else min(MANY_DOCUMENTS, -(-len(document) // self.context))
        spans = min(spans, len(document))
        return np.arange(len(document)) * spans // len(document)

    @cached_property
    def bytes(self) -> NDArray[np.float64]:  # [G]
        """Text bytes of each group."""
        tokens = np.asarray(self.corpus.val[:]).astype(np.int64)
        tokenizer = self.corpus.tokenizer
        table = np.asarray(tokenizer.bytes_per_token)
        targets, previous = tokens[self.positions], tokens[self.positions - 1]
        not_in_text = np.asarray(tokenizer.leading_space)[targets] & (table[previous] == 0)
        sums = np.bincount(self.groups, weights=table[targets].astype(np.float64) - not_in_text)
        return np.asarray(sums, np.float64)

    def by_group(self, losses: NDArray[Any], first: int) -> NDArray[np.float64]:  # [n] -> [G]
        """Sum losses of the targets from number `first` on, group by group."""
        mine = self.groups[first : first + losses.size]
        sums = np.bincount(mine, weights=losses.reshape(-1).astype(np.float64), minlength=len(self.bytes))
        return np.asarray(sums, np.float64)

    def to_dict(self) -> dict[str, Any]:
        return {"tokens": len(self.positions), "documents": len(self.bytes), "bytes": int(self.bytes.sum())}
