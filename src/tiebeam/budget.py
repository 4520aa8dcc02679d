"""What the pair costs: parameters and bytes, tied and untied. Pure arithmetic on integers.

Tying saves one matrix of vocabulary x width, no more and no less. Its weight in the model is `head_share`:
one matrix over the *untied* total, so that a tied model and its untied twin have the same share, and so that
"20.5% of 1B" means a model of 1B parameters with both matrices counted.

Numbers that people write ("3.2B") and read ("614.6M", "1.2 GB") are parsed and written here, by one rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tiebeam.errors import BadRequest

LARGEST_COUNT = 10**18


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes for a table of `params` parameters: at rest by dtype, and what training adds to the weights.

    int8 is one byte a parameter; the scales of a real quantisation come on top, by well under a percent.
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
        """Kept in fp32, dense: the head's gradient touches every row."""
        return 4 * self.params

    @property
    def master(self) -> int:
        """The fp32 copy of the weights that training in bf16 keeps."""
        return 4 * self.params

    @property
    def adam(self) -> int:
        """Two fp32 moments."""
        return 8 * self.params

    @property
    def muon(self) -> int:
        """One fp32 momentum. Muon is made for the trunk's matrices; a vocabulary table belongs with Adam."""
        return 4 * self.params

    def to_dict(self) -> dict[str, int]:
        names = ("params", "fp32", "bf16", "int8", "gradient", "master", "adam", "muon")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Budget:
    """A pair of `vocab` x `dim` matrices around a trunk, priced tied and untied.

    Without a trunk the matrices are priced alone: totals and share are None.
    """

    vocab: int
    dim: int
    trunk: int | None = None

    @property
    def matrix(self) -> int:
        return self.vocab * self.dim

    @property
    def saved(self) -> int:
        """What tying saves: one matrix."""
        return self.matrix

    @property
    def tied_total(self) -> int | None:
        return None if self.trunk is None else self.trunk + self.matrix

    @property
    def untied_total(self) -> int | None:
        return None if self.trunk is None else self.trunk + 2 * self.matrix

    @property
    def head_share(self) -> float | None:
        """One matrix over the untied total; at most a half."""
        return None if self.untied_total is None else self.matrix / self.untied_total

    @property
    def tied_table(self) -> Memory:
        return Memory(self.matrix)

    @property
    def untied_table(self) -> Memory:
        return Memory(2 * self.matrix)

    def within(self, total: int) -> Budget | None:
        """The same pair in a model of `total` parameters, both matrices counted; None when they don't fit."""
        trunk = total - 2 * self.matrix
        return None if trunk < 0 else Budget(self.vocab, self.dim, trunk)

    def to_dict(self) -> dict[str, Any]:
        """As `plan --json` has it: `bytes` and `optimizer_bytes` (Adam) are those of one matrix, which tying saves."""
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


def price(vocab: int, dim: int, trunk: int | None = None) -> Budget:
    """Price a pair of vocabulary x width matrices, with the parameters of everything between them if known."""
    if vocab < 1:
        raise BadRequest(f"the vocabulary is {vocab:,} tokens; it needs at least 1")
    if dim < 1:
        raise BadRequest(f"the width is {dim:,}; it needs at least 1")
    if trunk is not None and trunk < 0:
        raise BadRequest(f"the trunk has {trunk:,} parameters; it needs at least 0 (both matrices not counted)")
    return Budget(vocab, dim, trunk)


_COUNT = re.compile(
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*)(?:\.(?P<fraction>[0-9]+))?"
    r"(?:[eE]\+?(?P<exponent>[0-9]{1,2})|\s?(?P<suffix>[kKmMbBtT]))?"
)
_POWERS = {"": 0, "K": 3, "M": 6, "B": 9, "T": 12}


def parse_count(text: str) -> int:
    """'3.2B', '135M', '50k', '50,257', '1_000', '1e9' -> an int, exactly: no float on the way."""
    found = _COUNT.fullmatch(text.strip()) if len(text) <= 40 else None
    if found is None:
        shown = text if len(text) <= 40 else text[:37] + "..."
        raise BadRequest(f"'{shown}' is not a count; write it like 50257, 50,257, 50k, 135M or 3.2B")
    fraction = found["fraction"] or ""
    power = int(found["exponent"] or 0) + _POWERS[(found["suffix"] or "").upper()] - len(fraction)
    digits = int(re.sub("[,_]", "", found["whole"]) + fraction)
    count, rest = divmod(digits * int(10 ** max(power, 0)), int(10 ** max(-power, 0)))
    if rest:
        hint = "" if found["suffix"] or found["exponent"] else f"; did you mean {text.strip()}B or {text.strip()}M?"
        raise BadRequest(f"'{text}' is not a whole number" + hint)
    if count > LARGEST_COUNT:
        raise BadRequest(f"'{text}' is more than a quintillion (1e18), beyond any model; check the suffix")
    return count


_BYTES = re.compile(r"(?P<number>.*?)\s*(?P<unit>[kKMGT]?B)?")
_BYTE_POWERS = {"KB": "e3", "MB": "e6", "GB": "e9", "TB": "e12"}


def parse_bytes(text: str) -> int:
    """A size with decimal units -> bytes: '16MB', '16 MB', '1.5GB', '16,000,000' or '16000000 B'.

    >>> parse_bytes("16MB"), parse_bytes("1.5 kB")
    (16000000, 1500)
    """
    found = _BYTES.fullmatch(text.strip().upper())
    power = _BYTE_POWERS.get(found["unit"] or "", "") if found else ""
    try:
        return parse_count(f"{found['number']}{power}" if found else text)
    except BadRequest:
        raise BadRequest(f"'{text[:40]}' is not a size; write bytes, or 16MB") from None


def human(count: int) -> str:
    """Exact below 10,000; then k and M with one decimal, B and T with two: '614.6M', '3.84B'."""
    if count < 10_000:
        return f"{count:,}"
    for unit, power, decimals in (("k", 3, 1), ("M", 6, 1), ("B", 9, 2), ("T", 12, 2)):
        scaled = _rounded(count * 10**decimals, 10**power)
        if scaled < 1000 * 10**decimals or unit == "T":
            break
    whole, fraction = divmod(scaled, 10**decimals)
    return f"{whole:,}.{fraction:0{decimals}d}{unit}"


def human_bytes(count: int) -> str:
    """Decimal units; one decimal below 10 and from GB up: '576 B', '9.4 MB', '98 MB', '1.2 GB'."""
    if count < 1000:
        return f"{count} B"
    for unit, power in (("kB", 3), ("MB", 6), ("GB", 9), ("TB", 12)):
        tenths = _rounded(count * 10, 10**power)
        if tenths < 100 or (power >= 9 and tenths < 10_000):
            return f"{tenths // 10}.{tenths % 10} {unit}"
        if power < 9 and (whole := _rounded(count, 10**power)) < 1000:
            return f"{whole} {unit}"
    return f"{tenths // 10:,}.{tenths % 10} {unit}"


def percent(share: float) -> str:
    """'20.5%'; what would round to nothing is '<0.1%'."""
    return "<0.1%" if 0 < share < 0.0005 else f"{100 * share:.1f}%"


def _rounded(numerator: int, denominator: int) -> int:
    """Nearest integer, halves up."""
    return (2 * numerator + denominator) // (2 * denominator)
