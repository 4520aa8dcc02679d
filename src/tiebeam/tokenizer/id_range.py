"""The ids that a tokenizer can give, without building it: the highest id + 1, added tokens included.

Read from tokenizer.json, tokenizer_config.json, added_tokens.json and vocab.json beside the weights, or from a GGUF's
list of tokens. The vocabulary and the added tokens are cut out of tokenizer.json; its merges, the larger part of the
file, are not parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiebeam._pattern import pattern
from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.json_files import decode_json, read_json
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_REMOTE_TOKENIZER, MAX_TOKENIZER

_IDS = 1 << 31
_VOCAB = pattern(r'"vocab"\s*:\s*(?=[{\[])')
_ID = pattern(r"[0-9]{1,10}")
_ADDED = pattern(r'"added_tokens"\s*:\s*(?=\[)')


@dataclass(frozen=True)
class TokenIds:
    """`size` is the highest id + 1. `added` are the ids beyond the tokenizer's own vocabulary, `sources` the files."""

    size: int
    texts: Mapping[int, str] | Sequence[str] = field(repr=False)
    added: frozenset[int] = field(default=frozenset(), repr=False)
    sources: tuple[str, ...] = ()

    def text(self, token: int) -> str | None:
        """The token as the vocabulary spells it (byte-level BPE writes a space as `Ġ`); None if it has no such id."""
        if isinstance(self.texts, Mapping):
            return self.texts.get(token)
        return self.texts[token] if 0 <= token < self.size else None

    def from_id(self, first: int) -> Iterable[int]:
        """The ids from `first` on that have a text: a vocabulary of ten tokens can have the id 2**31 - 1."""
        return (i for i in self.texts if i >= first) if isinstance(self.texts, Mapping) else range(first, self.size)


def token_ids(checkpoint: Checkpoint) -> TokenIds | None:
    """The ids of a checkpoint's tokenizer; None if it has none, or one that is not read (a SentencePiece model alone).

    >>> from tiebeam import open_checkpoint
    >>> token_ids(open_checkpoint("tied")) is None
    True
    """
    if checkpoint.format == "gguf":
        return _in_gguf(checkpoint.metadata)
    if checkpoint.format == "module":
        return None
    names = set(checkpoint.files.names())
    base: dict[int, str] = {}
    added: dict[int, str] = {}
    sources: list[str] = []
    if "tokenizer.json" in names:
        document = _tokenizer_json(checkpoint)
        if document is None:
            return None
        base, added = document
        sources.append("tokenizer.json")
    elif "vocab.json" in names:
        base = _texts(read_json(checkpoint.files, "vocab.json").items())
        sources.append("vocab.json")
    else:
        return None  # a SentencePiece model, or none: added tokens alone are not its size
    if "added_tokens.json" in names:
        added |= _texts(read_json(checkpoint.files, "added_tokens.json").items())
        sources.append("added_tokens.json")
    if "tokenizer_config.json" in names:
        listed = read_json(checkpoint.files, "tokenizer_config.json").get("added_tokens_decoder")
        if isinstance(listed, Mapping):
            entries = [(key, entry) for key, entry in listed.items() if isinstance(entry, Mapping)]
            added |= _texts((entry.get("content"), int(key)) for key, entry in entries if _ID.fullmatch(key))
            sources.append("tokenizer_config.json")
    if not base and not added:
        return None
    return TokenIds(max(*base, *added, 0) + 1, {**base, **added}, frozenset(added.keys() - base.keys()), tuple(sources))


def _tokenizer_json(checkpoint: Checkpoint) -> tuple[dict[int, str], dict[int, str]] | None:
    """(vocabulary, added tokens); None if the file is too large to download for a count."""
    name, size = "tokenizer.json", checkpoint.files.size("tokenizer.json")
    if size > MAX_TOKENIZER:
        raise UnreadableInput(f"{name} is {size:,} bytes; it exceeds the limit of {MAX_TOKENIZER:,} bytes")
    if size > MAX_REMOTE_TOKENIZER and not isinstance(checkpoint.files, LocalFiles):
        return None
    text = decode_json(checkpoint.files.read(name, 0, size), name)
    vocab, listed = _value(text, _VOCAB, name), _value(text, _ADDED, name)
    if isinstance(vocab, list):  # Unigram: [[piece, score], ...], the id is the position
        base = _texts((entry[0], i) for i, entry in enumerate(vocab) if isinstance(entry, list) and entry)
    else:
        base = _texts((vocab or {}).items())
    entries = [entry for entry in listed or [] if isinstance(entry, Mapping)]
    return base, _texts((entry.get("content"), entry.get("id")) for entry in entries)


def _value(text: str, key: re.Pattern[str], name: str) -> Any:
    """The value of the first such key. A token spelled `vocab` has a number as its value, so it does not match."""
    found = key.search(text)
    if found is None:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, found.end())[0]
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{name} is not valid JSON: {error}") from None


def _texts(pairs: Iterable[tuple[Any, Any]]) -> dict[int, str]:
    """{id: text} of the pairs that are a text and a possible id."""
    return {i: text for text, i in pairs if type(i) is int and isinstance(text, str) and 0 <= i < _IDS}


def _in_gguf(metadata: Mapping[str, Any]) -> TokenIds | None:
    """A GGUF lists one token per id. A long list stays in the file until a text is asked for."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Sequence) or not len(tokens):
        return None
    return TokenIds(len(tokens), tokens, sources=("tokenizer.ggml.tokens",))
