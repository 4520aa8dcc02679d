"""The precisions that a vocabulary matrix can be rounded to: bits per weight, and how many weights share a scale.

`row`: one float16 scale per row, as `tiebeam pack` stores a table. `block`: one per 32 columns, as GGUF does. The rule
of Q4_0 and Q5_0 (the largest value of a block becomes the lowest code, so that all 2^bits codes are used) also gives
block-wise 6 and 3 bits, which have no GGUF type of this form; Q8_0 is symmetric.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 32


@dataclass(frozen=True, slots=True)
class Precision:
    """`bits` 16 is float16. `group`: columns per scale, None for the whole row. `gguf`: the type that stores it."""

    bits: int
    group: int | None = None
    gguf: str | None = None

    @property
    def name(self) -> str:
        """
        >>> Precision(4, 32, "Q4_0").name, Precision(6).name, Precision(16, gguf="F16").name
        ('q4 block', 'q6 row', 'f16')
        """
        if self.bits == 16:
            return "f16"
        return f"q{self.bits} {'block' if self.group else 'row'}"

    @property
    def limits(self) -> tuple[int, int]:
        """The lowest and the highest code."""
        half = 1 << (self.bits - 1)
        return (-half, half - 1) if self.group and self.bits < 8 else (1 - half, half - 1)

    def nbytes(self, rows: int, columns: int) -> int:
        """
        >>> Precision(4, 32).nbytes(1, 64), Precision(4).nbytes(1, 64), Precision(16).nbytes(1, 64)
        (36, 34, 128)
        """
        if self.bits == 16:
            return 2 * rows * columns
        scales = -(-columns // self.group) if self.group else 1
        return rows * (-(-columns * self.bits // 8) + 2 * scales)

    def fits(self, columns: int) -> bool:
        return self.group is None or columns % self.group == 0


_GGUF = {8: "Q8_0", 5: "Q5_0", 4: "Q4_0"}
F16 = Precision(16, gguf="F16")
PRECISIONS = (F16, *(Precision(bits, group, _GGUF.get(bits) if group else None) for bits in (8, 6, 5, 4, 3)
                     for group in (BLOCK, None)))  # fmt: skip
BY_GGUF = {precision.gguf: precision for precision in PRECISIONS if precision.gguf}
