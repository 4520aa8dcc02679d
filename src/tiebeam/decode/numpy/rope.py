"""Rotary positions: the frequencies of each scaling, and the cosines and sines of a range of positions.

Angles are float32 products, as in the frameworks that trained these models: at position 8000 the rounding of
position x frequency is part of what the model learned.
"""

from __future__ import annotations

import math
import reprlib
from typing import Any

import numpy as np

from tiebeam.decode.numpy.ops import Array
from tiebeam.errors import UnreadableInput
from tiebeam.families.config_fields import is_number
from tiebeam.families.spec import Rope

SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "factors")


def tables(rope: Rope, length: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:  # -> [length, R/2], [length, R/2]
    """cos and sin for positions 0 .. length-1 of a sequence that will grow to `length`."""
    inverse, factor = frequencies(rope, length)
    angles = np.arange(length, dtype=dtype)[:, None] * inverse.astype(dtype)
    return np.cos(angles) * factor, np.sin(angles) * (-factor if rope.backwards else factor)


def frequencies(rope: Rope, length: int) -> tuple[Array, float]:  # -> [R/2], the factor on cos and sin
    powers = rope.theta ** (np.arange(0, rope.dim, 2) / rope.dim)  # [R/2], float64
    plain = 1.0 / powers
    match rope.kind:
        case "linear":
            return plain / _number(rope, "factor"), 1.0
        case "llama3":
            return _llama3(rope, plain), 1.0
        case "yarn":
            return _yarn(rope, plain)
        case "longrope":
            return _longrope(rope, plain, length)
        case "factors":  # a GGUF stores the result of llama3's scaling, not its parameters
            return plain / _list(rope, "factors"), 1.0
    return plain, 1.0  # "dynamic" differs only beyond the context, which the decoder does not exceed


def _llama3(rope: Rope, plain: Array) -> Array:  # [R/2] -> [R/2]
    """Long wavelengths are stretched by the factor, short ones kept, those between interpolated."""
    factor, original = _number(rope, "factor"), _number(rope, "original_max_position_embeddings")
    low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    turns = original * plain / (2 * math.pi)  # full turns within the original context
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - blend) * plain / factor + blend * plain


def _yarn(rope: Rope, plain: Array) -> tuple[Array, float]:
    original, factor = _number(rope, "original_max_position_embeddings"), _number(rope, "factor")
    fast, slow = _number(rope, "beta_fast", 32), _number(rope, "beta_slow", 1)
    if rope.theta == 1:
        raise UnreadableInput("the yarn rotary scaling needs a rope_theta other than 1: all frequencies are equal")

    def place(turns: float) -> float:
        """The index of the frequency that makes this many turns within the original context."""
        return rope.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = place(fast), place(slow)
    if rope.scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    ramp = np.clip((np.arange(rope.dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    attention = _number(rope, "attention_factor", 0)
    if not attention:
        one, all_dim = _number(rope, "mscale", 0), _number(rope, "mscale_all_dim", 0)
        stretch = [1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0 for m in (one or 1, all_dim or 1)]
        attention = stretch[0] / stretch[1] if one and all_dim else stretch[0]
    return plain / factor * ramp + plain * (1 - ramp), attention


def _longrope(rope: Rope, plain: Array, length: int) -> tuple[Array, float]:
    """Two sets of divisors: one for sequences within the original context, one for longer ones."""
    original = _number(rope, "original_max_position_embeddings")
    divisors = _list(rope, "long_factor" if length > original else "short_factor")
    attention = _number(rope, "attention_factor", 0)
    if not attention:
        factor = _number(rope, "factor", 0) or _number(rope, "max_position_embeddings") / original
        attention = math.sqrt(1 + math.log(factor) / math.log(max(original, 2))) if factor > 1 else 1.0
    return plain / divisors, attention


def _number(rope: Rope, key: str, default: float | None = None) -> float:
    """A positive number of the scaling, of a size that arithmetic can bear; `default` where it is absent, null or 0."""
    value = rope.scaling.get(key)
    if default is not None and (value is None or (value == 0 and value is not False)):
        return default
    if not is_number(value) or not 1e-12 < value < 1e12:
        raise UnreadableInput(
            f"the {rope.kind} rotary scaling needs a positive {key}; the config has {reprlib.repr(value)}"
        )
    return float(value)


def _list(rope: Rope, key: str) -> Array:  # -> [R/2]
    value = rope.scaling.get(key)
    try:
        numbers = np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.empty(0)
    if numbers.shape != (rope.dim // 2,) or not ((numbers > 0) & np.isfinite(numbers)).all():
        raise UnreadableInput(f"the {rope.kind} rotary scaling needs {rope.dim // 2} positive numbers in {key}")
    return numbers
