"""The shapes of a ladder: one base shape at several widths, with the head size and the MLP ratio of the base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiebeam.compare.variants import WIDTH_MULTIPLE
from tiebeam.errors import BadRequest
from tiebeam.train import Settings


def at_width(base: Settings, width: int) -> Settings:
    """The base shape at another width.

    >>> small = at_width(Settings(steps=1, dim=256, heads=8, kv_heads=4, mlp_dim=512), 64)
    >>> small.dim, small.heads, small.kv_heads, small.mlp_dim
    (64, 2, 1, 128)
    """
    if width == base.dim:
        return base
    size = base.dim // base.heads
    if width < size or width % size:
        raise BadRequest(
            f"width {width} is not a multiple of the head size {size} ({base.dim} / {base.heads} heads); use another "
            "width or number of heads"
        )
    heads = width // size
    kv_heads = max(1, heads * base.kv_heads // base.heads)
    while heads % kv_heads:
        kv_heads -= 1
    mlp = max(WIDTH_MULTIPLE, round(base.mlp_dim * width / base.dim / WIDTH_MULTIPLE) * WIDTH_MULTIPLE)
    return replace(base, dim=width, heads=heads, kv_heads=kv_heads, mlp_dim=mlp)


def parse_numbers(text: str, name: str) -> tuple[int, ...]:
    """Parse a list such as "64,128,256", in ascending order.

    >>> parse_numbers("256, 64", "widths")
    (64, 256)
    """
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise BadRequest(f'{name}="{text}" must be numbers of at least 1, such as 64,128,256')
    return tuple(found)


def check_widths(base: Settings, widths: Sequence[int]) -> tuple[Settings, ...]:
    """The base at every width, smallest first."""
    return tuple(at_width(base, width) for width in sorted(set(widths)))
