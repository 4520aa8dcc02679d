"""What each layer adds to a logit.

The residual stream is a sum, x = x_0 + (x_1 - x_0) + ... + (x_L - x_{L-1}), and the final norm is linear once its
divisor is fixed by x. So the logit of a token is a sum with one part per layer; the first part is the direct path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tiebeam.decode.numpy.ops import Array

if TYPE_CHECKING:
    from tiebeam.decode.numpy.decoder import Decoder


def layer_contributions(decoder: Decoder, states: Sequence[Array], token: int) -> Array:  # (L + 1) x [D] -> [L + 1]
    """Parts of the logit of `token`, before a softcap: the direct path, then every layer. They add up to the logit,
    less what the bias of a final LayerNorm adds.

    `states` is the residual stream at one position: after the embedding, and after each layer (see Decoder.forward).
    """
    x = np.stack([np.asarray(state, np.float64) for state in states])  # [L + 1, D]
    parts = np.diff(x, axis=0, prepend=0.0)  # [L + 1, D]
    norm, last = decoder.final_norm, x[-1]
    if norm.kind == "rms":
        divisor = np.sqrt(np.mean(last**2) + norm.eps)
    else:
        parts = parts - parts.mean(axis=1, keepdims=True)
        divisor = np.sqrt(np.var(last) + norm.eps)
    gain = 1.0 if norm.gain is None else norm.gain.astype(np.float64)
    row = decoder.head.lookup(np.array([token], np.int64))[0].astype(np.float64)  # [D]
    found: Array = (parts * gain / divisor) @ row * decoder.spec.scales.logits
    return found
