"""How much of an embedding's gradient comes from the lookup and how much from the head. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Provenance:
    """The norms of the lookup's and the head's gradient, and the cosine between them.

    >>> Provenance.of(lookup=9.0, head=16.0, inner=0.0).to_dict()
    {'lookup_norm': 3.0, 'head_norm': 4.0, 'cosine': 0.0, 'head_share': 0.5714285714285714}
    """

    lookup_norm: float
    head_norm: float
    cosine: float
    """0 where one of the norms is 0."""

    @classmethod
    def of(cls, lookup: float, head: float, inner: float) -> Provenance:
        """From the two squared norms and the inner product."""
        both = math.sqrt(lookup) * math.sqrt(head)
        return cls(math.sqrt(lookup), math.sqrt(head), inner / both if both else 0.0)

    @property
    def head_share(self) -> float:
        """head / (head + lookup), of the norms."""
        total = self.lookup_norm + self.head_norm
        return self.head_norm / total if total else 0.0

    def to_dict(self) -> dict[str, float]:
        return {**asdict(self), "head_share": self.head_share}
