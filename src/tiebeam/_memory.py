"""Give memory that was freed back to the system.

glibc keeps what arrays below 32 MB gave back, in case it is needed again. Where large matrices come and go beside a
model that fills the memory, that is hundreds of megabytes.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress


def trim_memory() -> None:
    """Does nothing where the C library has no malloc_trim."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
