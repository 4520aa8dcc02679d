"""Typed, bounded access to a config.json, and the parts of it that many families read alike: heads, layers, rope.

A key that config.json leaves out has the default of the transformers class that reads it, because the model's
author relied on that default. A wrong value is refused by name.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, TypeGuard

from tiebeam.errors import UnreadableInput
from tiebeam.families.spec import Layer, Rope

MAX_LAYERS = 10_000
FULL, SLIDING = "full_attention", "sliding_attention"
IF_STORED = "if stored"
"""Value of a bias key in a config made from GGUF metadata, which declares no biases: a bias is used if it is stored."""


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value of a file is a finite number that a float can hold: not true, NaN, 1e999 or 10**400.

    >>> [is_number(value) for value in (1, 0.5, True, None, float("inf"), 10**400)]
    [True, True, False, False, False, False]
    """
    if type(value) is int:
        return abs(value) < 1 << 63
    return type(value) is float and isfinite(value)


class Fields:
    """A configuration with the family's defaults behind it; `where` names the file in errors."""

    def __init__(
        self, config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, where: str = "config.json"
    ) -> None:
        self.config, self.defaults, self.where = config, defaults or {}, where

    def get(self, key: str) -> Any:
        return self.config.get(key, self.defaults.get(key))

    def count(self, key: str) -> int:
        """A positive whole number."""
        value = self.get(key)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise UnreadableInput(f"{self.where}: {key} is {reprlib.repr(value)}, not a positive whole number")
        return value

    def count_or_none(self, key: str) -> int | None:
        return None if self.get(key) is None else self.count(key)

    def count_or(self, key: str, default: int) -> int:
        """Like `count`; `default` where the config has no value or null."""
        return default if self.get(key) is None else self.count(key)

    def first(self, *keys: str) -> int:
        """The first key that has a value: files of different ages name the same size differently."""
        return self.count(next((key for key in keys if self.get(key) is not None), keys[0]))

    def layers(self, key: str = "num_hidden_layers") -> int:
        """The number of layers. Each becomes an object, so a damaged file must not ask for a billion."""
        value = self.count(key)
        if value > MAX_LAYERS:
            raise UnreadableInput(f"{self.where}: {key} is {value:,}, which exceeds the limit of {MAX_LAYERS:,}")
        return value

    def number(self, key: str) -> float:
        value = self.get(key)
        if not is_number(value):
            raise UnreadableInput(f"{self.where}: {key} is {reprlib.repr(value)}, not a number")
        return float(value)

    def number_or_none(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def scale(self, key: str) -> float:
        """A factor: a number other than 0; 1.0 where the config has null."""
        value = self.get(key)
        if value is None:
            return 1.0
        if not is_number(value) or value == 0:
            raise UnreadableInput(f"{self.where}: {key} is {reprlib.repr(value)}; a scale is a number, not 0")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise UnreadableInput(f"{self.where}: {key} is {reprlib.repr(value)}, not true or false")
        return bool(value)

    def refuse(self, key: str, why: str) -> None:
        """A feature that nothing here has is refused by name: a model run almost right is worse than one not run."""
        if self.flag(key):
            raise UnreadableInput(f"{self.where}: {key} is set; {why}")

    def bias(self, key: str) -> bool | None:
        """True: stored. False: none. None: used if stored, because a GGUF does not declare it."""
        return None if self.get(key) == IF_STORED else self.flag(key)

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise UnreadableInput(f"{self.where}: {key} is {reprlib.repr(value)}, not a name")
        return value

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers; empty where the config has none."""
        value = self.get(key) or []
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise UnreadableInput(f"{self.where}: {key} is {reprlib.repr(value)}, not a list of whole numbers")
        return value


def divide_heads(f: Fields, dim: int, heads: int) -> int:
    """The head dimension of a model without a `head_dim` key."""
    if dim % heads:
        raise UnreadableInput(f"{f.where}: a width of {dim} does not divide into {heads} attention heads")
    return dim // heads


def all_full(f: Fields) -> list[str]:
    return [FULL] * f.layers()


def layer_kinds(f: Fields, slides: Callable[[int], bool]) -> list[str]:
    """The kind of each layer: `layer_types` where the config has it, else by `slides(layer number)`."""
    count, given = f.layers(), f.get("layer_types")
    if given is None:
        return [SLIDING if slides(i) else FULL for i in range(count)]
    if not isinstance(given, list) or len(given) != count:
        raise UnreadableInput(f"{f.where}: layer_types does not name a kind for each of the {count} layers")
    for kind in given:
        if kind not in (FULL, SLIDING):
            raise UnreadableInput(f"{f.where}: the decoder has no layers of the type {reprlib.repr(kind)}")
    return given


def attention_layers(
    f: Fields, kinds: Sequence[str], rope: Mapping[str, Rope | None], scale: float
) -> tuple[Layer, ...]:
    """Layers of the given kinds, each with the rotary positions of its kind."""
    window = f.count("sliding_window") if SLIDING in kinds else None
    return tuple(Layer(window if kind == SLIDING else None, rope[kind], scale) for kind in kinds)


def read_rope(
    f: Fields,
    head_dim: int,
    kind: str | None = None,
    theta_key: str = "rope_theta",
    aliases: Mapping[str, str] | None = None,
) -> Rope:
    """Rotary positions in both spellings: rope_theta + rope_scaling (transformers 4), rope_parameters (5).

    `kind` selects the entry of one layer kind where rope_parameters has one for each; `theta_key` names the base
    frequency in the older spelling; `aliases` maps older names of a scaling to its present name.
    """
    given = f.get("rope_scaling") or f.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise UnreadableInput(f"{f.where}: rope_scaling is {reprlib.repr(given)}, not an object")
    if kind is not None:
        if FULL in given or SLIDING in given:
            given = given.get(kind) or {}
            if not isinstance(given, Mapping):
                raise UnreadableInput(
                    f"{f.where}: the rope_parameters of {kind} are {reprlib.repr(given)}, not an object"
                )
        elif kind == SLIDING:  # the older spelling scales the full layers only
            given = {}
    share = given.get("partial_rotary_factor", f.get("partial_rotary_factor"))
    numbers = {
        "rope_theta": given.get("rope_theta", f.get(theta_key)),
        "partial_rotary_factor": 1.0 if share is None else share,
    }
    checked = Fields(numbers, {}, f.where)
    theta, turned = checked.number("rope_theta"), checked.number("partial_rotary_factor")
    if theta <= 0 or not 0 < turned <= 1:
        raise UnreadableInput(
            f"{f.where}: rope_theta is {theta} and partial_rotary_factor {turned}; the first must be above 0, the "
            "second above 0 and at most 1"
        )
    dim = int(head_dim * turned)
    scaling = str(given.get("rope_type", given.get("type", "default")))
    context = f.count("max_position_embeddings")
    original = f.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
    lengths = {"original_max_position_embeddings": original or context, "max_position_embeddings": context}
    return Rope(dim, theta, (aliases or {}).get(scaling, scaling), {**given, **lengths})
