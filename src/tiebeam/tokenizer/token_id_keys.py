"""Token ids in config.json, generation_config.json and other small JSON files: find them, and renumber them.

A key that ends in _token_id or _token_index (also in the plural) names tokens that the model needs: the start and end
of a text, the place of an image. Lists of suppressed tokens and bad words name tokens that must not come; those lose
the tokens that no longer exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tiebeam.families.config_levels import config_levels

_NEEDED = re.compile(r"(^|_)token_(id|ids|index|indices)$")
_NEEDED_MAPS = ("lang_to_id", "task_to_id", "lang_code_to_id")  # Whisper's and NLLB's: text -> id
_UNWANTED = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids")
ID_FILES = ("generation_config.json", "processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
"""Files beside config.json whose top level may name token ids."""


def needed_ids(level: Mapping[str, Any]) -> Iterator[int]:
    """The ids of one config level that the model cannot do without. A negative id means that there is none."""
    for key, value in level.items():
        if _NEEDED.search(key):
            yield from _numbers(value)
        elif key in _NEEDED_MAPS and isinstance(value, Mapping):
            yield from _numbers(list(value.values()))
        elif key == "force_words_ids":
            yield from _numbers(value)
        elif key == "forced_decoder_ids" and isinstance(value, list):
            yield from _numbers([entry[1] for entry in value if isinstance(entry, list) and len(entry) == 2])


def renumbered(level: Mapping[str, Any], new_ids: Mapping[int, int]) -> dict[str, Any]:
    """The keys of one config level whose values change when old ids become new ones."""
    changed: dict[str, Any] = {}
    for key, value in level.items():
        if _NEEDED.search(key) or key == "force_words_ids":
            new = _mapped(value, new_ids)
        elif key in _NEEDED_MAPS and isinstance(value, Mapping):
            new = {text: _mapped(i, new_ids) for text, i in value.items()}
        elif key == "forced_decoder_ids" and isinstance(value, list):
            new = [[*entry[:1], *_mapped(entry[1:], new_ids)] if isinstance(entry, list) else entry for entry in value]
        elif key in _UNWANTED and isinstance(value, list):
            new = [_mapped(entry, new_ids) for entry in value if not _lost(entry, new_ids)]
        elif key == "sequence_bias" and isinstance(value, list):  # [[tokens, bias], ...]
            new = [[_mapped(entry[0], new_ids), *entry[1:]] for entry in value if not _lost(entry[0], new_ids)]
        else:
            continue
        if new != value:
            changed[key] = new
    return changed


def text_levels(
    config: Mapping[str, Any], vocab_size: int | None
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """The config levels whose ids are those of the vocabulary: not those with a vocabulary of another size."""
    for path, level in config_levels(config):
        own = level.get("vocab_size")
        if not path or vocab_size is None or type(own) is not int or own == vocab_size:
            yield path, level


def _lost(entry: Any, new_ids: Mapping[int, int]) -> bool:
    """Whether a suppressed token, or a bad word made of several, can no longer come."""
    return any(i not in new_ids for i in _numbers(entry))


def _numbers(value: Any) -> Iterator[int]:
    if type(value) is int and value >= 0:
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _numbers(one)


def _mapped(value: Any, new_ids: Mapping[int, int]) -> Any:
    if type(value) is int:
        return new_ids.get(value, value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_mapped(one, new_ids) for one in value]
    return value
