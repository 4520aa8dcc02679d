"""What the config declares about the tie, resolved as transformers 5 resolves it for that architecture.

There are two steps. First each config class settles its own flag: most take the key as written or the class's
default, some force it, some copy it from the text config. Then the model class ties if the flag is true at the
level that it reads: usually the top, sometimes the text config, sometimes none (then true has no effect). The
table of architectures says which applies.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from tiebeam.families.config_levels import FLAG, config_levels
from tiebeam.families.registry import Architecture, lookup

# Keys that code outside transformers uses instead; read only for unknown types.
_OTHER_KEYS = ("tie_embeddings", "tie_embedding", "weight_tying", "share_embedding", "share_input_output_layers")
# transformers ties these when it imports a GGUF, even if the file has output.weight.
_GGUF_ALWAYS_TIED = ("falcon", "bloom")


class Declared(NamedTuple):
    """The declared value and where it comes from: a key in a file, or a default. None: no valid declaration."""

    value: bool | None
    by: str

    def to_dict(self) -> dict[str, Any]:
        return {"declared": self.value, "declared_by": self.by}


class _Flag(NamedTuple):
    """The flag of one level. `written`: it is a key in the file, not a default."""

    value: bool | None
    by: str
    written: bool


def resolve_declared(
    config: Mapping[str, Any] | None, architecture: Architecture | None, config_name: str = "config.json"
) -> Declared:
    """What `config` declares for `architecture`; for an unknown architecture only a written flag counts.

    >>> from tiebeam.families import lookup
    >>> resolve_declared({"tie_word_embeddings": True}, lookup("llama"))
    Declared(value=True, by='config.json: tie_word_embeddings')
    """
    if config is None:
        return Declared(None, f"there is no {config_name}")
    if architecture is None:
        return _of_unknown(config, config_name)
    if not architecture.decides:
        flag = config.get(FLAG)
        ignored = f" ({config_name}'s true is ignored)" if flag is True else ""
        return Declared(False, f"{architecture.model_type} is never tied in transformers 5{ignored}")
    return _any(
        [
            _flag(config, architecture, config_name) if level == "" else _text_flag(config, architecture, config_name)
            for level in architecture.decides
        ]
    )


def declared_in_gguf(names: Container[str], architecture: str | None) -> Declared:
    """A GGUF has no flag: it is tied if it has no `output.weight`. `architecture` is its general.architecture."""
    if "output.weight" not in names:
        return Declared(True, "no output.weight")
    if architecture in _GGUF_ALWAYS_TIED:
        return Declared(True, f"{architecture} is always tied when read from GGUF (output.weight is ignored)")
    return Declared(False, "output.weight is stored")


def _flag(config: Mapping[str, Any], architecture: Architecture, config_name: str, path: str = "") -> _Flag:
    """The flag after the config class of `architecture` processed it; `path` is the prefix of `config` in the file."""
    own = _own_flag(config, architecture, config_name, path)
    match architecture.flag:
        case "forced":
            ignored = f" ({config_name}'s false is ignored)" if config.get(FLAG) is False else ""
            return _Flag(True, f"{architecture.model_type} is always tied in transformers 5{ignored}", written=False)
        case "text":
            return _text_flag(config, architecture, config_name, path)
        case "inherit" if config.get(FLAG) is None:
            return _text_flag(config, architecture, config_name, path)
        case "lift" if own.value is False:
            lifted = _text_flag(config, architecture, config_name, path)
            return lifted if lifted.value or (lifted.written and not own.written) else own
        case _:
            return own


def _own_flag(config: Mapping[str, Any], architecture: Architecture, config_name: str, path: str) -> _Flag:
    key = architecture.legacy_flag if architecture.legacy_flag in config else FLAG
    assert key is not None
    value = config.get(key)
    if key not in config or (value is None and architecture.remote):
        if architecture.tie_default is None:
            return _Flag(None, f"{config_name} has no {path}{FLAG}, and no default is known", written=False)
        return _default(architecture.tie_default, architecture.model_type, config_name, path)
    return _written(value, f"{config_name}: {path}{key}", architecture.flag_type)


def _text_flag(config: Mapping[str, Any], architecture: Architecture, config_name: str, path: str = "") -> _Flag:
    """The flag of the nested text config, after its config class has processed it."""
    assert architecture.text is not None
    path = f"{path}{architecture.text}."
    inner = config.get(architecture.text)
    inner = inner if isinstance(inner, Mapping) else {}
    named = inner.get("model_type")
    inner_architecture = lookup(named if isinstance(named, str) else architecture.text_type)
    if inner_architecture is not None:
        return _flag(inner, inner_architecture, config_name, path)
    if FLAG in inner:
        return _written(inner[FLAG], f"{config_name}: {path}{FLAG}", "bool")
    return _default(bool(architecture.text_tie), architecture.model_type, config_name, path)


def _written(value: object, key: str, allowed: str) -> _Flag:
    if isinstance(value, bool):
        return _Flag(value, key, written=True)
    if allowed == "any" or (allowed == "nullable" and value is None):
        return _Flag(bool(value), f"{key} ({_show(value)})", written=True)
    return _Flag(None, f"{key} is {_show(value)}, which transformers 5 refuses; write true or false", written=True)


def _default(value: bool, model_type: str, config_name: str, path: str) -> _Flag:
    return _Flag(value, f"the default of {model_type} ({config_name} has no {path}{FLAG})", written=False)


def _any(flags: list[_Flag]) -> Declared:
    """True if any level is true. Among levels that agree, a written flag is named before a default."""
    broken = next((flag for flag in flags if flag.value is None), None)
    on = next((flag for flag in flags if flag.value), None)
    chosen = broken or on or next((flag for flag in flags if flag.written), flags[0])
    return Declared(chosen.value, chosen.by)


def _of_unknown(config: Mapping[str, Any], config_name: str) -> Declared:
    """For a type that is not in the table: the first flag that is written, and never a default."""
    for path, level in config_levels(config):
        for key in (*_OTHER_KEYS, FLAG):
            if level.get(key) is not None:
                flag = _written(level[key], f"{config_name}: {'.'.join((*path, key))}", "bool")
                return Declared(flag.value, flag.by)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return Declared(None, f"{config_name} has neither {FLAG} nor a model_type")
    return Declared(None, f"{config_name} has no {FLAG}, and the default of {model_type!r} is not known")


def _show(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:40]} …"
