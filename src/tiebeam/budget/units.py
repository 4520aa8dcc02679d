"""Numbers as people write and read them: "3.2B" -> 3200000000, 614596608 -> "614.6M", bytes -> "1.2 GB"."""

from __future__ import annotations

import re

from tiebeam._pattern import pattern
from tiebeam.errors import BadRequest

LARGEST_COUNT = 10**18

_COUNT = pattern(
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


_BYTES = pattern(r"(?P<number>.*?)\s*(?P<unit>[kKMGT]?B)?")
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
