"""The levels of a config: the top, and each nested config of a language model inside it.

A multimodal or encoder-decoder config.json nests the config of its language model under one of the keys in
`TEXT_KEYS`, sometimes twice (`thinker_config.text_config`). Whoever reads or writes a value that can be at any
level (the tie flag, the vocabulary size) uses this list and no other.

    >>> config = {"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False}}
    >>> flag_levels(config)
    {('tie_word_embeddings',): True, ('text_config', 'tie_word_embeddings'): False}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FLAG = "tie_word_embeddings"
TEXT_KEYS = (
    "text_config", "llm_config", "language_config", "thinker_config", "decoder", "decoder_config", "generator",
)  # fmt: skip


def config_levels(
    config: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """(path, level) for the top of `config`, path (), and for every text config inside it, outermost first."""
    yield path, config
    for key in TEXT_KEYS:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            yield from config_levels(inner, (*path, key))


def flag_levels(config: Mapping[str, Any] | None, legacy: str | None = None) -> dict[tuple[str, ...], Any]:
    """{path of the key: value} for every level that has the tie flag; `legacy` is an older name that overrides it."""
    return {
        (*path, key): level[key]
        for path, level in config_levels(config or {})
        for key in (FLAG, legacy)
        if key is not None and key in level
    }
