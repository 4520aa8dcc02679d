"""The modules that a quantization_config leaves alone.

Without a list, transformers leaves the LM head alone by itself (its get_keys_to_not_convert, read from the source of
4.57 and 5.22). A list, even one for another module, replaces that default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEAD_MODULE = "lm_head"
_KEYS = ("llm_int8_skip_modules", "modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")


def skip_lists(config: Mapping[str, Any]) -> dict[tuple[str, ...], list[str]]:
    """{path of the key: modules} for every list in config.json that is not empty."""
    settings = config.get("quantization_config")
    if not isinstance(settings, Mapping):
        return {}
    lists = {("quantization_config", key): settings.get(key) for key in _KEYS}
    return {path: found for path, found in lists.items() if isinstance(found, list) and found}


def protects_head(listed: list[str], names: tuple[str, ...]) -> bool:
    """Whether an entry covers one of the head's names: a part of its path, or a regular expression (`re:`)."""
    modules = [name.removesuffix(".weight") for name in names]
    return any(
        entry.startswith("re:") or entry in module.split(".") or module.endswith(entry) or entry in module
        for entry in listed
        if isinstance(entry, str) and entry
        for module in modules
    )


def with_head(listed: list[str]) -> list[str]:
    return [*listed, HEAD_MODULE] if HEAD_MODULE not in listed else listed
