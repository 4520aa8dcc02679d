"""Pack codes and scales as GGUF blocks, where the codes are ours and not those of the gguf package's rounding.

A block is a float16 scale and the codes of 32 columns. Codes below 8 bits are stored from 0 up: their low four bits as
nibbles (columns 0 to 15 low, 16 to 31 high), the fifth bit of Q5_0 as one bit per column before them.
"""

from __future__ import annotations

import numpy as np

from tiebeam.surgery.quantize.precisions import BLOCK, Precision
from tiebeam.surgery.quantize.rounding import Rounded


def packed_blocks(rounded: Rounded, precision: Precision) -> bytes:
    """The bytes of the GGUF type `precision.gguf`.

    >>> from tiebeam.surgery.quantize.rounding import round_nearest
    >>> q4 = Precision(4, 32, "Q4_0")
    >>> len(packed_blocks(round_nearest(np.ones((2, 64)), q4), q4))
    72
    """
    codes = rounded.codes.reshape(-1, BLOCK)
    scales = rounded.scales.reshape(-1, 1).astype("<f2").view(np.uint8)  # [n, 2]
    if precision.bits == 8:
        return np.concatenate([scales, codes.view(np.uint8)], axis=1).tobytes()
    stored = (codes.astype(np.int16) - precision.limits[0]).astype(np.uint8)
    nibbles = (stored[:, :16] & 15) | ((stored[:, 16:] & 15) << 4)
    if precision.bits == 4:
        return np.concatenate([scales, nibbles], axis=1).tobytes()
    fifth = np.packbits(stored >> 4, axis=1, bitorder="little")  # [n, 4]
    return np.concatenate([scales, fifth, nibbles], axis=1).tobytes()
