"""Names of temporary files that stay within what a file system allows: 255 bytes on most."""

from __future__ import annotations

import os

_BYTES = 100


def shortened(name: str, limit: int = _BYTES) -> str:
    """`name`, cut so that it has at most `limit` bytes on disk.

    >>> shortened("model"), shortened("模" * 80)[-1], len(os.fsencode(shortened("模" * 80)))
    ('model', '模', 99)
    """
    raw = os.fsencode(name)
    return name if len(raw) <= limit else raw[:limit].decode("utf-8", "ignore")
