"""Choose the tokens that stay: by a number of rows, or by how much of the text they cover.

Tokens are removed one by one, the rarest first. A BPE token that is removed falls apart into the two parts of its last
merge, so they inherit its count; and a part is removed only after every token that is built from it. So each kept token
can be built as before, and a removed one becomes few tokens, mostly two. Among equal counts the token that the
tokenizer itself ranks lowest goes first, so that rows that the text does not need hold the most common other tokens.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tiebeam.errors import BadRequest
from tiebeam.tokenizer.vocabulary_pieces import Pieces

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Selection:
    """`kept` are the old ids in ascending order. `required`: special, added and byte tokens and those asked for;
    `used`: others that the text uses; the rest are parts of tokens, or common tokens that the text does not use."""

    kept: Ids = field(repr=False)
    required: int
    used: int
    coverage: float
    """The share of the text's tokens that are kept."""

    @property
    def rows(self) -> int:
        return len(self.kept)

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "required": self.required,
            "used_by_the_text": self.used,
            "not_used_by_the_text": self.rows - self.required - self.used,
            "coverage": self.coverage,
        }


@dataclass(frozen=True)
class Chooser:
    """Selections from one vocabulary and one text.

    counts     [rows of the table]; tokens with a higher id have no row and cannot stay
    required   ids that stay beside `pieces.always`
    """

    pieces: Pieces
    counts: Ids = field(repr=False)
    required: frozenset[int]

    @cached_property
    def always(self) -> frozenset[int]:
        """What stays in any case, with all that it is built from."""
        kept: set[int] = set()
        for token in sorted(self.pieces.always | self.required):
            kept |= self.pieces.needed(token, kept)
        return frozenset(kept)

    @cached_property
    def removal(self) -> Ids:
        """Every token that may go, in the order in which they go."""
        import numpy as np

        rank = {token: place for place, token in enumerate(self.pieces.order)}
        free = [token for token in rank if token < len(self.counts) and token not in self.always]
        counts = {token: int(self.counts[token]) for token in free}
        needed_by = dict.fromkeys(free, 0)
        for token in free:
            for part in self.pieces.parts(token):
                if part in needed_by:
                    needed_by[part] += 1
        heap = [(counts[token], -rank[token], token) for token in free if not needed_by[token]]
        heapq.heapify(heap)
        order = []
        while heap:
            count, _, token = heapq.heappop(heap)
            order.append(token)
            for part in self.pieces.parts(token):
                if part in needed_by:
                    counts[part] += count
                    needed_by[part] -= 1
                    if not needed_by[part]:
                        heapq.heappush(heap, (counts[part], -rank[part], part))
        assert len(order) == len(free), "a token is part of itself"
        return np.array(order, np.int64)

    def keep(self, rows: int) -> Selection:
        """A table of exactly `rows` rows; of all tokens, if there are fewer."""
        if rows < len(self.always):
            raise BadRequest(
                f"keep={rows} is less than the {len(self.always):,} tokens that must stay: special, added and byte "
                "tokens, and those asked for"
            )
        return self._without(max(0, len(self.always) + len(self.removal) - rows))

    def rows_to_cover(self, share: float) -> int:
        """The fewest rows whose tokens are `share` of the text's."""
        import numpy as np

        if not 0 < share <= 1:
            raise BadRequest(f"coverage must be above 0 and at most 1, not {share:g}")
        lost = np.cumsum(self.counts[self.removal])
        removed = int(np.searchsorted(lost, (1 - share) * self.counts.sum(), side="right"))
        return len(self.always) + len(self.removal) - removed

    def _without(self, removed: int) -> Selection:
        import numpy as np

        always = np.array(sorted(self.always), np.int64)
        kept = np.sort(np.concatenate([always, self.removal[removed:]]))
        total = int(self.counts.sum())
        used = int((self.counts[self.removal[removed:]] > 0).sum())
        return Selection(kept, len(always), used, float(self.counts[kept].sum() / total) if total else 0.0)
