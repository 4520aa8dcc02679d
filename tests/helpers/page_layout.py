"""What is wrong with the layout of a page: by its boxes, and by a screenshot that is wider than the page."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np

STRIP = 160  # pixels beside the page that a screenshot also takes
_PIECE = 4000  # pixels of height of one screenshot: larger ones come back empty

_BOXES = (Path(__file__).parent / "page_layout.js").read_text()


def layout_problems(page: Any) -> list[str]:
    """Text and elements outside the page, texts that are cut off, and texts that overlap."""
    return list(page.evaluate(_BOXES))


def painted_beside_the_page(page: Any) -> list[int]:
    """Heights at which a screenshot wider than the page shows something to the right of it.

    The layout stays that of the page's width, so only what sticks out is painted there.
    """
    size = page.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
    width, height = int(size[0]), int(size[1])
    session = page.context.new_cdp_session(page)
    found: list[int] = []
    for top in range(0, height, _PIECE):
        clip = {"x": width, "y": top, "width": STRIP, "height": min(_PIECE, height - top), "scale": 1}
        taken = session.send("Page.captureScreenshot", {"format": "png", "clip": clip, "captureBeyondViewport": True})
        pixels = _pixels(base64.b64decode(taken["data"]))
        blank = (pixels == pixels[-1, -1]).all(axis=2).all(axis=1)
        found += (top + np.flatnonzero(~blank)).tolist()
    session.detach()
    return found


def _pixels(png: bytes) -> np.ndarray:  # -> [height, width, 3]
    from matplotlib.image import imread

    return np.asarray(imread(io.BytesIO(png), format="png"))[..., :3]
