"""The words of the project: a Matrix, the Pair of them, and the Tie between them. No I/O.

Three facts about a pair are kept apart and never folded into one boolean, because every real bug in this
field is a disagreement between them: what the configuration *declares*, which tensors are *stored*, and
whether their numbers are *equal*. The `Tie` is the verdict that follows from the three.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Tie(StrEnum):
    """The seven states of a pair."""

    SHARED = "shared"
    UNTIED = "untied"
    TWIN = "twin"
    TORN = "torn"
    HEADLESS = "headless"
    SWAPPED = "swapped"
    NONE = "none"

    @property
    def meaning(self) -> str:
        return _MEANING[self]

    @property
    def healthy(self) -> bool:
        return self in (Tie.SHARED, Tie.UNTIED, Tie.NONE)


_MEANING = {
    Tie.SHARED: "one matrix serves both ends",
    Tie.UNTIED: "two matrices, each its own",
    Tie.TWIN: "one matrix paid for twice",
    Tie.TORN: "declared tied, stored as two different matrices: loaders disagree about which counts",
    Tie.HEADLESS: "declared untied, but no head is stored: a loader starts it at random, without an error",
    Tie.SWAPPED: "the one matrix is stored under the head's name only",
    Tie.NONE: "no vocabulary pair found",
}


@dataclass(frozen=True, slots=True)
class Matrix:
    """One end of the pair as the file holds it: [rows, dim] = vocabulary x width."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: str

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def dim(self) -> int:
        return self.shape[1]

    @property
    def params(self) -> int:
        return self.shape[0] * self.shape[1]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "bytes": self.nbytes,
            "file": self.file,
        }


@dataclass(frozen=True, slots=True)
class Pair:
    """Both ends and the three facts about them.

    `head` is None when no head tensor is stored. `one_storage` says that both names are stored but point at the
    same bytes, which only formats with aliases (PyTorch) can express. `encoder` says that this class of model
    has no head by design, so nothing is missing.
    """

    embed: Matrix | None
    head: Matrix | None
    declared: bool | None
    declared_by: str
    equal: bool | None = None
    one_storage: bool = False
    encoder: bool = False

    @property
    def stored(self) -> tuple[str, ...]:
        return tuple(end for end, matrix in (("embed", self.embed), ("head", self.head)) if matrix is not None)

    @property
    def tie(self) -> Tie:
        """The verdict. When nothing is declared, what is stored speaks for itself."""
        if self.embed is None and self.head is None:
            return Tie.NONE
        if self.encoder and self.head is None:
            return Tie.NONE
        if self.embed is None:
            return Tie.SWAPPED
        if self.head is None:
            return Tie.HEADLESS if self.declared is False else Tie.SHARED
        if self.one_storage:
            return Tie.SHARED
        if self.equal:
            return Tie.TWIN
        return Tie.TORN if self.declared else Tie.UNTIED
