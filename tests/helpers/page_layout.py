"""What is wrong with the layout of a page: by its boxes, and by screenshots of what is beside it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

STRIP = 160  # pixels beside the page that are looked at
_SHADOW = 0.04  # of full brightness: the shadows of panels end beside the page

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
    page.evaluate(f"document.body.style.setProperty('transform', 'translateX(-{STRIP}px)')")
    clip = {"x": width - STRIP, "y": 0, "width": STRIP, "height": height}
    pixels = _pixels(page.screenshot(full_page=True, clip=clip))
    page.evaluate("document.body.style.removeProperty('transform')")
    blank = (np.abs(pixels - pixels[-1, -1]) < _SHADOW).all(axis=(1, 2))
    return list(map(int, np.flatnonzero(~blank)))


def _pixels(png: bytes) -> np.ndarray:  # -> [height, width, 3]
    from matplotlib.image import imread

    return np.asarray(imread(io.BytesIO(png), format="png"))[..., :3]
