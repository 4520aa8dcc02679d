"""The tie flag at one level of a config, read without defaults or inheritance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiebeam.families.config_levels import FLAG, TEXT_KEYS


def text_of(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The nested config of the language model; None if the config is flat."""
    for key in TEXT_KEYS:
        inner = (config or {}).get(key)
        if isinstance(inner, Mapping):
            return inner
    return None


def flag_at(config: Mapping[str, Any] | None, level: str) -> bool | None:
    """The flag at the top ("") or in the text config ("text"); None if it is absent there or not a boolean."""
    where = config if level == "" else text_of(config)
    value = (where or {}).get(FLAG)
    return value if isinstance(value, bool) else None
