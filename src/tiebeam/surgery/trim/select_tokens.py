"""Choose the tokens that stay: by a number of rows, or by how much of the text they cover.

Tokens that must stay come first, then those of the text, the most frequent first, each with all that it is built from.
Rows that are still free are filled with the tokens that the tokenizer itself ranks highest.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    `used`: others that the text uses; the rest are parts of them, or fill the table."""

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
            "parts_and_filling": self.rows - self.required - self.used,
            "coverage": self.coverage,
        }


@dataclass(frozen=True)
class Chooser:
    """Selections from one vocabulary and one text.

    required   ids that stay beside `pieces.always`
    rows       of the table: ids from there on have no row and cannot stay
    """

    pieces: Pieces
    counts: Ids = field(repr=False)
    required: frozenset[int]
    rows: int

    @cached_property
    def always(self) -> frozenset[int]:
        """What stays in any case, with all that it is built from."""
        kept: set[int] = set()
        for token in sorted(self.pieces.always | self.required):
            kept |= self.pieces.needed(token, kept)
        return frozenset(kept)

    def keep(self, rows: int) -> Selection:
        """A table of exactly `rows` rows."""
        kept = set(self.always)
        required = len(kept)
        if rows < required:
            raise BadRequest(
                f"keep={rows} is less than the {required:,} tokens that must stay: special, added and byte tokens, and "
                "those asked for"
            )
        for token in (*self._by_count(), *self._ranked()):
            if len(kept) == rows:
                break
            if token not in kept:
                need = self.pieces.needed(token, kept)
                if len(kept) + len(need) <= rows:
                    kept |= need
        return self._selection(kept, required)

    def cover(self, share: float, multiple: int = 1) -> Selection:
        """The fewest rows whose tokens are `share` of the text's; then up to a multiple."""
        if not 0 < share <= 1:
            raise BadRequest(f"coverage must be above 0 and at most 1, not {share:g}")
        kept = set(self.always)
        required = len(kept)
        total = int(self.counts.sum())
        covered = int(self.counts[sorted(kept)].sum())
        for token in self._by_count():
            if covered >= share * total:
                break
            if token not in kept:
                need = self.pieces.needed(token, kept)
                kept |= need
                covered += int(self.counts[sorted(need)].sum())
        rows = -(-len(kept) // multiple) * multiple
        return self.keep(rows) if rows > len(kept) else self._selection(kept, required)

    def _by_count(self) -> Iterable[int]:
        import numpy as np

        seen = np.flatnonzero(self.counts)
        return [int(i) for i in seen[np.argsort(-self.counts[seen], kind="stable")]]

    def _ranked(self) -> Iterable[int]:
        return (i for i in self.pieces.order if i < self.rows)

    def _selection(self, kept: set[int], required: int) -> Selection:
        import numpy as np

        ids = np.array(sorted(kept), np.int64)
        total = int(self.counts.sum())
        used = int((self.counts[ids] > 0).sum()) - int((self.counts[sorted(self.always)] > 0).sum())
        return Selection(ids, required, used, float(self.counts[ids].sum() / total) if total else 0.0)
