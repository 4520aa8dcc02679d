"""Add tokens to the tokenizer of a checkpoint: tokenizer.json and the files beside it, or the tokenizer in a GGUF.

A new token matches its text exactly, before the text is normalized and split, so it always becomes one id. Only what
has to change does: tokenizer.json gets entries in `added_tokens`, and the other files are changed if they are there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.json_files import decode_json, parse_json
from tiebeam.checkpoint.write.json_edit import set_value
from tiebeam.errors import BadRequest
from tiebeam.tokenizer.gguf import rebuild
from tiebeam.tokenizer.load import Tokenizer, explaining_failure

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_PADDING = re.compile(r"\[PAD\d+\]")
_ADDED_SCORE = -1000.0  # what llama.cpp's converter gives an added token
_TOKENS, _TYPES, _SCORES = (f"tokenizer.ggml.{key}" for key in ("tokens", "token_type", "scores"))


@dataclass(frozen=True, slots=True)
class NewToken:
    """`special`: a control token, which decoding can leave out."""

    text: str
    id: int
    special: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, "id": self.id, "special": self.special}


def free_ids(checkpoint: Checkpoint, count: int, first: int) -> list[int]:
    """The ids that `count` new tokens get; `first` is the first id behind the tokenizer's.

    A GGUF has a token for each row. Rows without a token have a placeholder, [PAD123], which is replaced first.
    """
    free: list[int] = []
    if checkpoint.format == "gguf":
        free = placeholders(checkpoint)[:count]
    return [*free, *range(first, first + count - len(free))]


def placeholders(checkpoint: Checkpoint) -> list[int]:
    """The ids of a GGUF whose token is only a placeholder for a row without a token."""
    texts, types = checkpoint.metadata.get(_TOKENS) or (), checkpoint.metadata.get(_TYPES) or ()
    pairs = enumerate(zip(texts, types, strict=False))
    return [i for i, (text, kind) in pairs if kind == _UNUSED and _PADDING.fullmatch(text)]


def add_to_files(checkpoint: Checkpoint, tokens: Sequence[NewToken]) -> dict[str, bytes]:
    """The tokenizer's files with `tokens` added, by name."""
    names = set(checkpoint.files.names())
    if "tokenizer.json" not in names:
        raise BadRequest(
            f"{checkpoint.source} has no tokenizer.json to add tokens to; write one with transformers first: "
            "AutoTokenizer.from_pretrained(SRC).save_pretrained(SRC)"
        )
    texts = {name: _text(checkpoint, name) for name in sorted(names & _CHANGED.keys())}
    return {name: new.encode() for name, text in texts.items() if (new := _CHANGED[name](text, tokens)) != text}


def add_to_gguf(metadata: Mapping[str, Any], tokens: Sequence[NewToken], size: int) -> dict[str, Any]:
    """The metadata of a GGUF that changes; `size` tokens in all, with placeholders where there is no text."""
    texts = list(metadata[_TOKENS])
    types = list(metadata.get(_TYPES) or [1] * len(texts))
    scores = list(metadata.get(_SCORES) or ())
    old = len(texts)
    texts += [f"[PAD{i}]" for i in range(old, size)]
    types += [_UNUSED] * (size - old)
    for token in tokens:
        texts[token.id] = token.text
        types[token.id] = _CONTROL if token.special else _USER_DEFINED
    changed: dict[str, Any] = {_TOKENS: texts, _TYPES: types}
    if scores:
        scores += [_ADDED_SCORE] * (size - old)
        for token in tokens:
            scores[token.id] = _ADDED_SCORE
        changed[_SCORES] = scores
    return changed


def with_changes(checkpoint: Checkpoint, files: Mapping[str, bytes], metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer as it will be, from the changed files or the changed metadata."""
    if checkpoint.format == "gguf":
        return rebuild({**checkpoint.metadata, **metadata}, checkpoint.source)
    return _from_json(files["tokenizer.json"])


def without_tokens(checkpoint: Checkpoint, texts: Sequence[str]) -> Tokenizer:
    """The tokenizer of a directory without some of its added tokens: how it splits their texts."""
    document = parse_json(_text(checkpoint, "tokenizer.json").encode(), "tokenizer.json")
    listed = document.get("added_tokens") or []
    document["added_tokens"] = [entry for entry in listed if entry.get("content") not in texts]
    return _from_json(json.dumps(document, ensure_ascii=False).encode())


def _from_json(raw: bytes) -> Tokenizer:
    import tokenizers

    with explaining_failure("tokenizer.json cannot be read"):
        backend = tokenizers.Tokenizer.from_buffer(raw)
    backend.no_padding()
    backend.no_truncation()
    return Tokenizer(backend)


def _text(checkpoint: Checkpoint, name: str) -> str:
    return decode_json(checkpoint.files.read(name, 0, checkpoint.files.size(name)), name)


def _entry(token: NewToken) -> dict[str, Any]:
    return {
        "content": token.text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": token.special,
    }


def _tokenizer_json(text: str, tokens: Sequence[NewToken]) -> str:
    listed = _object(text, "tokenizer.json").get("added_tokens") or []
    return set_value(text, ("added_tokens",), [*listed, *({"id": token.id, **_entry(token)} for token in tokens)])


def _tokenizer_config(text: str, tokens: Sequence[NewToken]) -> str:
    document = _object(text, "tokenizer_config.json")
    decoder = document.get("added_tokens_decoder")
    if isinstance(decoder, dict):  # transformers 4 lists every added token here, too
        new = {str(token.id): dict(sorted(_entry(token).items())) for token in tokens}
        text = set_value(text, ("added_tokens_decoder",), {**decoder, **new})
    special = [token.text for token in tokens if token.special]
    key = "extra_special_tokens" if _of_transformers_5(document) else "additional_special_tokens"
    listed = document.get(key) or []
    if special and isinstance(listed, list):
        text = set_value(text, (key,), [*listed, *special])
    return text


def _of_transformers_5(document: Mapping[str, Any]) -> bool:
    """Version 5 calls the list of further special tokens `extra_special_tokens`; in version 4 that is an object."""
    return isinstance(document.get("extra_special_tokens"), list) or "backend" in document


def _special_tokens_map(text: str, tokens: Sequence[NewToken]) -> str:
    listed = _object(text, "special_tokens_map.json").get("additional_special_tokens") or []
    special = [token for token in tokens if token.special]
    if not special or not isinstance(listed, list):
        return text
    as_objects = bool(listed) and isinstance(listed[0], dict)
    new = [{k: v for k, v in _entry(t).items() if k != "special"} if as_objects else t.text for t in special]
    return set_value(text, ("additional_special_tokens",), [*listed, *new])


def _added_tokens_json(text: str, tokens: Sequence[NewToken]) -> str:
    listed = {**_object(text, "added_tokens.json"), **{token.text: token.id for token in tokens}}
    return json.dumps(listed, ensure_ascii=False, indent=2) + "\n"


def _object(text: str, name: str) -> dict[str, Any]:
    return parse_json(text.encode(), name)


_CHANGED = {
    "tokenizer.json": _tokenizer_json,
    "tokenizer_config.json": _tokenizer_config,
    "special_tokens_map.json": _special_tokens_map,
    "added_tokens.json": _added_tokens_json,
}
