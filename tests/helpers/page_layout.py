"""What is wrong with the layout of a page: by its boxes, and by screenshots of what is beside it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

STRIP = 160  # pixels beside the page that are looked at
_SHADOW = 0.04  # of full brightness: the shadows of panels end beside the page
_PIECE = 4000  # pixels of height of one screenshot: larger ones come back empty

_BOXES = (Path(__file__).parent / "page_layout.js").read_text()


def layout_problems(page: Any) -> list[str]:
    """Text and elements outside the page, texts that are cut off, and texts that overlap."""
    return list(page.evaluate(_BOXES))


def painted_beside_the_page(page: Any) -> list[int]:
    """Heights at which something is painted to the right of the page, from screenshots of the page moved to the left.

    Moving keeps the layout of the page's width, while a wider window would get another one. So only what sticks out is
    painted in the strip that becomes free.
    """
    width, height = page.evaluate("[innerWidth, document.documentElement.scrollHeight]")
    found: list[int] = []
    page.evaluate(f"document.body.style.setProperty('transform', 'translateX(-{STRIP}px)')")
    for top in range(0, height, _PIECE):
        clip = {"x": width - STRIP, "y": top, "width": STRIP, "height": min(_PIECE, height - top)}
        pixels = _pixels(page.screenshot(full_page=True, clip=clip))
        blank = (np.abs(pixels - pixels[-1, -1]) < _SHADOW).all(axis=(1, 2))
        found += (top + np.flatnonzero(~blank)).tolist()
    page.evaluate("document.body.style.removeProperty('transform')")
    return found


def _pixels(png: bytes) -> np.ndarray:  # -> [height, width, 3]
    from matplotlib.image import imread

    return np.asarray(imread(io.BytesIO(png), format="png"))[..., :3]
