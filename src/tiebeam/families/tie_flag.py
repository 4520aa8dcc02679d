"""What the configuration declares, resolved as transformers 5 resolves it when it loads that architecture.

Two steps, as there. First each config class settles its own flag: mostly the key as written or the class's
default, but some force it, some take it over from the text config. Then the model class ties when the flag
is on at the level it asks: mostly the top, sometimes the text config, sometimes nowhere, and then a flag
that says true changes nothing. Which applies is in the table.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from tiebeam.families.registry import Architecture, lookup

KEY = "tie_word_embeddings"
# The keys that code outside transformers uses instead; read only where the type is unknown.
_OTHER_KEYS = ("tie_embeddings", "tie_embedding", "weight_tying", "share_embedding", "share_input_output_layers")
_INNER = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
# transformers ties these on import whatever the file holds.
_GGUF_ALWAYS_TIED = ("falcon", "bloom")


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration, and what makes it: a file and key, or a default. None: nothing valid is declared."""

    value: bool | None
    by: str

    def to_dict(self) -> dict[str, Any]:
        return {"declared": self.value, "declared_by": self.by}


@dataclass(frozen=True, slots=True)
class _Flag:
    """One level's flag. `written` tells a key in the file from a default."""

    value: bool | None
    by: str
    written: bool


def resolve_declared(
    config: Mapping[str, Any] | None, architecture: Architecture | None, config_name: str = "config.json"
) -> Declared:
    """What `config` declares for `architecture`; for an unknown architecture, what is written and no more."""
    if config is None:
        return Declared(None, f"there is no {config_name}")
    if architecture is None:
        return _of_unknown(config, config_name)
    if not architecture.decides:
        flag = config.get(KEY)
        ignored = f" ({config_name}'s true is ignored)" if flag is True else ""
        return Declared(False, f"{architecture.model_type} is never tied in transformers 5{ignored}")
    return _any(
        [
            _flag(config, architecture, config_name) if level == "" else _text_flag(config, architecture, config_name)
            for level in architecture.decides
        ]
    )


def declared_in_gguf(names: Container[str], architecture: str | None) -> Declared:
    """A GGUF has no flag: a file without `output.weight` is tied. `architecture` is its general.architecture."""
    if "output.weight" not in names:
        return Declared(True, "no output.weight")
    if architecture in _GGUF_ALWAYS_TIED:
        return Declared(True, f"{architecture} is always tied when read from GGUF (output.weight is ignored)")
    return Declared(False, "output.weight is stored")


def _flag(config: Mapping[str, Any], architecture: Architecture, config_name: str, path: str = "") -> _Flag:
    """The flag as the config class of `architecture` leaves it; `path` is where `config` sits in the file."""
    own = _own_flag(config, architecture, config_name, path)
    match architecture.flag:
        case "forced":
            ignored = f" ({config_name}'s false is ignored)" if config.get(KEY) is False else ""
            return _Flag(True, f"{architecture.model_type} is always tied in transformers 5{ignored}", written=False)
        case "text":
            return _text_flag(config, architecture, config_name, path)
        case "inherit" if config.get(KEY) is None:
            return _text_flag(config, architecture, config_name, path)
        case "lift" if own.value is False:
            lifted = _text_flag(config, architecture, config_name, path)
            return lifted if lifted.value or (lifted.written and not own.written) else own
        case _:
            return own


def _own_flag(config: Mapping[str, Any], architecture: Architecture, config_name: str, path: str) -> _Flag:
    key = architecture.legacy_flag if architecture.legacy_flag in config else KEY
    assert key is not None
    value = config.get(key)
    if key not in config or (value is None and architecture.remote):
        if architecture.tie_default is None:
            return _Flag(None, f"{config_name} has no {path}{KEY}, and no default is known", written=False)
        return _default(architecture.tie_default, architecture.model_type, config_name, path)
    return _written(value, f"{config_name}: {path}{key}", architecture.flag_type)


def _text_flag(config: Mapping[str, Any], architecture: Architecture, config_name: str, path: str = "") -> _Flag:
    """The flag one level down, as the class of the text config leaves it."""
    assert architecture.text is not None
    path = f"{path}{architecture.text}."
    inner = config.get(architecture.text)
    inner = inner if isinstance(inner, Mapping) else {}
    named = inner.get("model_type")
    inner_architecture = lookup(named if isinstance(named, str) else architecture.text_type)
    if inner_architecture is not None:
        return _flag(inner, inner_architecture, config_name, path)
    if KEY in inner:
        return _written(inner[KEY], f"{config_name}: {path}{KEY}", "bool")
    return _default(bool(architecture.text_tie), architecture.model_type, config_name, path)


def _written(value: object, key: str, allowed: str) -> _Flag:
    if isinstance(value, bool):
        return _Flag(value, key, written=True)
    if allowed == "any" or (allowed == "nullable" and value is None):
        return _Flag(bool(value), f"{key} ({_show(value)})", written=True)
    return _Flag(None, f"{key} is {_show(value)}, which transformers 5 refuses; write true or false", written=True)


def _default(value: bool, model_type: str, config_name: str, path: str) -> _Flag:
    return _Flag(value, f"the default of {model_type} ({config_name} has no {path}{KEY})", written=False)


def _any(flags: list[_Flag]) -> Declared:
    """On when any level is on. Among levels that agree, one that is written says more than a default."""
    broken = next((flag for flag in flags if flag.value is None), None)
    on = next((flag for flag in flags if flag.value), None)
    chosen = broken or on or next((flag for flag in flags if flag.written), flags[0])
    return Declared(chosen.value, chosen.by)


def _of_unknown(config: Mapping[str, Any], config_name: str) -> Declared:
    """No table entry: believe a flag where one is written, and never make up a default."""
    levels = [("", config)]
    levels += [(f"{key}.", inner) for key in _INNER if isinstance(inner := config.get(key), Mapping)]
    for path, level in levels:
        for key in (*_OTHER_KEYS, KEY):
            if level.get(key) is not None:
                flag = _written(level[key], f"{config_name}: {path}{key}", "bool")
                return Declared(flag.value, flag.by)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return Declared(None, f"{config_name} has neither {KEY} nor a model_type")
    return Declared(None, f"{config_name} has no {KEY}, and the default of {model_type!r} is not known")


def _show(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:40]} …"
