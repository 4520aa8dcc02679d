"""Parameters and bytes of the embedding and the LM head, tied and untied.

Tying saves exactly one vocab x dim matrix. `head_share` is that matrix over the *untied* total, so that a tied model
and its untied twin have the same share: "20.5% of 1B" means a model of 1B parameters with both matrices counted.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from tiebeam._html import table
from tiebeam.budget.units import human, human_bytes, percent
from tiebeam.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes for `params` parameters: the weights by dtype, and what training adds.

    int8 is one byte per parameter; the scales of a real quantization add well under one percent.
    """

    params: int

    @property
    def fp32(self) -> int:
        return 4 * self.params

    @property
    def bf16(self) -> int:
        return 2 * self.params

    @property
    def int8(self) -> int:
        return self.params

    @property
    def gradient(self) -> int:
        """In fp32, dense: the head's gradient touches every row."""
        return 4 * self.params

    @property
    def master(self) -> int:
        """The fp32 master copy of weights trained in bf16."""
        return 4 * self.params

    @property
    def adam(self) -> int:
        """Two fp32 moments."""
        return 8 * self.params

    @property
    def muon(self) -> int:
        """One fp32 momentum. For comparison only: do not optimize embeddings with Muon."""
        return 4 * self.params

    def to_dict(self) -> dict[str, int]:
        names = ("params", "fp32", "bf16", "int8", "gradient", "master", "adam", "muon")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Budget:
    """Cost of two `vocab` x `dim` matrices, tied and untied.

    `trunk` is the number of non-embedding parameters. Without it the totals and the share are None.

        >>> price(50_000, 4096).saved
        204800000
    """

    vocab: int
    dim: int
    trunk: int | None = None

    @property
    def matrix(self) -> int:
        return self.vocab * self.dim

    @property
    def saved(self) -> int:
        """Parameters that tying saves: one matrix."""
        return self.matrix

    @property
    def tied_total(self) -> int | None:
        return None if self.trunk is None else self.trunk + self.matrix

    @property
    def untied_total(self) -> int | None:
        return None if self.trunk is None else self.trunk + 2 * self.matrix

    @property
    def head_share(self) -> float | None:
        """One matrix over the untied total; at most 0.5."""
        return None if self.untied_total is None else self.matrix / self.untied_total

    @property
    def tied_table(self) -> Memory:
        return Memory(self.matrix)

    @property
    def untied_table(self) -> Memory:
        return Memory(2 * self.matrix)

    def within(self, total: int) -> Budget | None:
        """The same matrices in a model of `total` parameters, both counted; None if they do not fit."""
        trunk = total - 2 * self.matrix
        return None if trunk < 0 else Budget(self.vocab, self.dim, trunk)

    def to_dict(self) -> dict[str, Any]:
        """The document of `plan --json`. `bytes` and `optimizer_bytes` (Adam) are of one matrix, which tying saves."""
        one = self.tied_table
        return {
            "vocab": self.vocab,
            "dim": self.dim,
            "trunk": self.trunk,
            "matrix": self.matrix,
            "tied_total": self.tied_total,
            "untied_total": self.untied_total,
            "saved": self.saved,
            "head_share": self.head_share,
            "bytes": {"fp32": one.fp32, "bf16": one.bf16, "int8": one.int8},
            "optimizer_bytes": one.adam,
        }

    @property
    def verdict(self) -> str:
        """One sentence: what tying saves."""
        of = "" if self.head_share is None else f", {percent(self.head_share)} of the untied model"
        return f"Tying saves {human(self.saved)} parameters{of}"

    @property
    def _heading(self) -> str:
        return f"{self.verdict} ({self.vocab:,} x {self.dim:,} each)"

    def rows(self, exact: bool = False) -> list[list[str]]:
        """Tied, untied and the saving, as table rows: parameters, bytes, training memory. `exact` writes totals out."""
        one, two = self.tied_table, self.untied_table
        weighed, columns = "vocab", (one, two, one)
        rows = [["", "tied", "untied", "tying saves"]]
        if self.trunk is not None:
            rows.append(["non-embedding", human(self.trunk), human(self.trunk), ""])
        rows.append(["vocabulary", *(human(column.params) for column in columns)])
        if self.tied_total and self.untied_total and self.head_share:
            weighed, columns = "model", (Memory(self.tied_total), Memory(self.untied_total), one)
            totals = (f"{total.params:,}" if exact else human(total.params) for total in columns[:2])
            rows.append(["total", *totals, percent(self.head_share)])
        for dtype in ("fp32", "bf16", "int8"):
            rows.append([f"{weighed} {dtype}", *(human_bytes(getattr(column, dtype)) for column in columns)])
        rows.append(["vocab gradient", *(human_bytes(column.gradient) for column in (one, two, one))])
        rows.append(["vocab Adam", *(human_bytes(column.adam) for column in (one, two, one))])
        return rows

    def __str__(self) -> str:
        from tiebeam._text import columns

        return "\n".join([self._heading, *(line.plain for line in columns(self.rows(), "<>>>", gap=3))])

    def _repr_html_(self) -> str:
        header, *rows = self.rows()
        return table(rows, header=header, title=self._heading)


def price(vocab: int, dim: int, trunk: int | None = None) -> Budget:
    """Cost of an embedding and an LM head of vocab x dim, tied and untied.

    `trunk` is the number of non-embedding parameters, if known.

    >>> import tiebeam
    >>> gpt2 = tiebeam.price(50_257, 768, trunk=85_842_432)
    >>> gpt2.saved, gpt2.tied_total
    (38597376, 124439808)
    >>> print(gpt2.verdict)
    Tying saves 38.6M parameters, 23.7% of the untied model
    """
    trunk = None if trunk is None else _whole("trunk", trunk, least=0)
    return Budget(_whole("vocab", vocab, least=1), _whole("dim", dim, least=1), trunk)


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)  # takes NumPy's integers too
    except TypeError:
        raise BadRequest(f"{name} must be an integer, not {value!r} ({type(value).__name__})") from None
    if number < least:
        raise BadRequest(f"{name} must be at least {least}, not {number:,}")
    return number
