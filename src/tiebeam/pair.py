"""The core data model: a `Matrix`, the `Pair` of embedding and LM head, and its state, the `Tie`. No I/O.

Three facts about a pair are kept separate and never reduced to one boolean, because every real bug here is a
disagreement between them: what the config *declares*, which tensors are *stored*, and whether their numbers are
*equal*. The `Tie` follows from the three.
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
        """One line that explains the state.

        >>> Tie.TWIN.meaning
        'the same matrix is stored twice'
        """
        return _MEANING[self]

    @property
    def healthy(self) -> bool:
        """Whether a model in this state works as declared and wastes nothing."""
        return self in (Tie.SHARED, Tie.UNTIED, Tie.NONE)


_MEANING = {
    Tie.SHARED: "one matrix is both embedding and LM head",
    Tie.UNTIED: "embedding and LM head are two different matrices",
    Tie.TWIN: "the same matrix is stored twice",
    Tie.TORN: "declared tied, but two different matrices are stored: loaders disagree about which one to use",
    Tie.HEADLESS: "declared untied, but no LM head is stored: loaders initialize it at random, without an error",
    Tie.SWAPPED: "the matrix is stored under the LM head's name only",
    Tie.NONE: "no embedding or LM head found",
}


@dataclass(frozen=True, slots=True)
class Matrix:
    """The embedding or the LM head as it is stored: [rows, dim] = [vocabulary, width]."""

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
    """Embedding and LM head, and the three facts about them.

    `head` is None if no head tensor is stored. `one_storage`: both names are stored but point at the same bytes,
    which only formats with aliases (PyTorch) can express. `encoder`: this class of model has no head by design.

    >>> embed = Matrix("wte.weight", (50257, 768), "F32", 154_389_504, "model.safetensors")
    >>> Pair(embed, None, declared=True, declared_by="config.json").tie
    <Tie.SHARED: 'shared'>
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
        """Which of "embed" and "head" are stored."""
        return tuple(role for role, matrix in (("embed", self.embed), ("head", self.head)) if matrix is not None)

    @property
    def tie(self) -> Tie:
        """The state that follows from the facts. If nothing is declared, the stored tensors decide."""
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
