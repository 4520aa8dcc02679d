"""Looks up what is known about a model type: its entry in `architectures.json`, and its family's file if it has one.

The table holds what the code of an architecture fixes: the names of embedding and LM head (in memory and in
files), what its config class does with the tie flag, and how its input and logits are scaled. A GGUF
architecture name leads to the same entry as the model type. The families' files in this package hold the rest.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiebeam.families.family import Family

from dataclasses import dataclass

from tiebeam.families.config_levels import config_levels

_HERE = os.path.dirname(__file__)  # noqa: PTH120 - importing pathlib takes longer than reading the table


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the code of one architecture fixes. Names are tensor names; the first is the one in memory."""

    model_type: str
    role: str
    embed: tuple[str, ...]
    head: tuple[str, ...]
    head_bias: bool | str
    """Whether the head has a bias; a string names the config key that decides it."""
    tie_default: bool | None
    """The flag when the config has none; None when that is not known."""
    flag: str
    """How the config class resolves the flag: own, forced, lift, inherit or text (see the table's `about`)."""
    flag_type: str
    """What the flag may hold without transformers refusing the config: bool, nullable or any."""
    legacy_flag: str | None
    """A key that overrides tie_word_embeddings."""
    decides: tuple[str, ...]
    """The config levels whose flag ties head to embedding, any of them; empty when nothing does."""
    text: str | None
    """The key of the language model's config, if it is not the config itself."""
    text_type: str | None
    text_tie: bool | None
    beside: Mapping[str, str | None]
    """stored name of the embedding: name of the head in that layout, where it is not the first of `head`; None where
    the embedding's name does not tell."""
    followers: Mapping[str, str]
    """tensor: the one that it repeats while the flag is true; stored only in an untied checkpoint."""
    vocab_keys: tuple[str, ...]
    dim_keys: tuple[str, ...]
    input_scale: str | None
    logit_scale: str | None
    softcap: str | None
    note: str | None
    remote: bool
    """Whether its code is outside transformers, so that the entry could not be checked against it."""

    @property
    def flag_scales_logits(self) -> bool:
        """Whether the flag also decides how the logits are scaled: setting it then changes them."""
        return "tie_word_embeddings" in (self.logit_scale or "")


def lookup(model_type: object) -> Architecture | None:
    """The entry of a `model_type` or a GGUF architecture name; None when the table has none, or it is no text."""
    if not isinstance(model_type, str):
        return None
    table = _table()
    if model_type in table["architectures"] or model_type in table["remote"]:
        return _read(model_type)
    alias = table["gguf"].get(model_type)
    return None if alias is None else _read(alias)


@cache
def families() -> dict[str, Family]:
    """Every family that has a file in this package, by model type. A file is found by its tuple FAMILIES."""
    import pkgutil

    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules([_HERE]):
        file = importlib.import_module(f"tiebeam.families.{module.name}")
        found |= {family.model_type: family for family in getattr(file, "FAMILIES", ())}
    return found


def known_types() -> tuple[str, ...]:
    """Every model type in the table."""
    table = _table()
    return (*table["architectures"], *table["remote"])


def text_level(
    config: Mapping[str, Any], architecture: Architecture | None
) -> tuple[Mapping[str, Any], Architecture | None]:
    """The config of the language model inside `config`, and its architecture where the table has one.

    Multimodal configs were once flat: without the nested config, the top level is the text config.
    """
    while architecture is not None and architecture.text is not None:
        inner = config.get(architecture.text)
        if not isinstance(inner, Mapping):
            break
        named = inner.get("model_type")
        inner_type = named if isinstance(named, str) else architecture.text_type
        inner_architecture = lookup(inner_type)
        if inner_architecture is None:
            return inner, architecture
        config, architecture = inner, inner_architecture
    return config, architecture


def vocabulary(config: Mapping[str, Any] | None, architecture: Architecture | None) -> int | None:
    """The vocabulary size that the config gives; the matrices may have a few padding rows more."""
    return _size(config, architecture, "vocab_keys", ("vocab_size", "padded_vocab_size", "n_vocab"))


def width(config: Mapping[str, Any] | None, architecture: Architecture | None) -> int | None:
    """The width of the two matrices as the config gives it, which is not always the width of the model."""
    return _size(config, architecture, "dim_keys", ("hidden_size", "d_model", "n_embd", "dim"))


def _size(
    config: Mapping[str, Any] | None, architecture: Architecture | None, keys: str, usual: tuple[str, ...]
) -> int | None:
    if config is None:
        return None
    inner, inner_architecture = text_level(config, architecture)
    levels = [(inner, inner_architecture), (config, architecture)]
    if architecture is None:
        levels += [(nested, None) for path, nested in config_levels(config) if path]
    for level, owner in levels:
        for key in (*(getattr(owner, keys) if owner else ()), *usual):
            value = level.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


@cache
def _table() -> dict[str, Any]:
    with open(os.path.join(_HERE, "architectures.json"), "rb") as file:  # noqa: PTH118
        table: dict[str, Any] = json.loads(file.read())
    return table


@cache
def _read(model_type: str) -> Architecture:
    table = _table()
    remote = model_type not in table["architectures"]
    entry: dict[str, Any] = table["remote" if remote else "architectures"][model_type]
    layout = table["layouts"][entry.get("layout", "decoder")]
    base = entry.get("base", "bert")

    def full(stem: str) -> str:
        return stem[1:] if stem[0] == "=" else f"{stem.format(base=base)}.weight"

    def names(end: str) -> tuple[str, ...]:
        return tuple(full(stem) for stem in entry.get(end, layout[end]))

    def mapping(key: str) -> dict[str, Any]:
        stems = entry.get(key, layout.get(key, {}))
        return {full(stem): full(other) if other else None for stem, other in stems.items()}

    return Architecture(
        model_type=model_type,
        role=entry.get("role", "causal_lm"),
        embed=names("embed"),
        head=names("head"),
        head_bias=entry.get("head_bias", False),
        tie_default=entry.get("tie", False),
        flag=entry.get("flag", "own"),
        flag_type=entry.get("flag_type", "nullable" if remote else "bool"),
        legacy_flag=entry.get("legacy_flag"),
        decides=tuple(entry.get("decides", [""])),
        text=entry.get("text"),
        text_type=entry.get("text_type"),
        text_tie=entry.get("text_tie"),
        beside=mapping("beside"),
        followers=mapping("followers"),
        vocab_keys=tuple(entry.get("vocab", "vocab_size").split("|")),
        dim_keys=tuple(entry.get("width", "hidden_size").split("|")),
        input_scale=entry.get("input_scale"),
        logit_scale=entry.get("logit_scale"),
        softcap=entry.get("softcap"),
        note=entry.get("note"),
        remote=remote,
    )
