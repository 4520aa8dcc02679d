"""A tokenizer with only some of its tokens: tokenizer.json and the files beside it, or the tokenizer in a GGUF.

The kept tokens stay in their old order and get the ids 0, 1, 2, ... A merge stays if both of its parts and its result
do. Which tokens may be dropped is decided by `vocabulary_pieces`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tiebeam.checkpoint.json_files import decode_json, parse_json
from tiebeam.checkpoint.write.json_edit import set_value
from tiebeam.errors import BadRequest
from tiebeam.tokenizer.load import Tokenizer, explaining_failure
from tiebeam.tokenizer.token_id_keys import ID_FILES, renumbered
from tiebeam.tokenizer.vocabulary_pieces import joined, split_merge

_GGUF = "tokenizer.ggml."
_STALE = re.compile(r"\.(model|spm|tiktoken)(\.v\d+)?$|(^|/)(tekken\.json|encoder\.json|vocab\.bpe|dict\.txt)$")


def new_ids(kept: Sequence[int]) -> dict[int, int]:
    """old id: new id."""
    return {int(old): new for new, old in enumerate(kept)}


def keep_in_json(document: Mapping[str, Any], kept: Mapping[int, int]) -> dict[str, Any]:
    """A parsed tokenizer.json with the tokens of `kept` (old id: new id) only."""
    model = dict(document["model"])
    if isinstance(model["vocab"], list):  # Unigram: the id is the position
        model["vocab"] = [entry for i, entry in enumerate(model["vocab"]) if i in kept]
        if type(model.get("unk_id")) is int:
            model["unk_id"] = kept[model["unk_id"]]
    else:
        model["vocab"] = {text: kept[i] for text, i in model["vocab"].items() if i in kept}
    if "merges" in model:
        prefix = model.get("continuing_subword_prefix") or ""
        model["merges"] = [merge for merge in model["merges"] if _stays(merge, model["vocab"], prefix)]
    changed = {**document, "model": model}
    changed["added_tokens"] = [{**entry, "id": kept[entry["id"]]} for entry in document.get("added_tokens") or ()]
    if isinstance(document.get("post_processor"), Mapping):
        changed["post_processor"] = _processor(document["post_processor"], kept)
    if isinstance(document.get("padding"), Mapping):
        padding = document["padding"]
        changed["padding"] = {**padding, "pad_id": kept.get(padding.get("pad_id"), padding.get("pad_id"))}
    return changed


def tokenizer_of(document: Mapping[str, Any], start: tuple[int, ...] | None = None) -> Tokenizer:
    """The tokenizer that a parsed tokenizer.json describes; `start` are the ids put before a text, if it adds none."""
    import tokenizers

    with explaining_failure("the trimmed tokenizer cannot be built"):
        backend = tokenizers.Tokenizer.from_str(json.dumps(document, ensure_ascii=False))
    backend.no_padding()
    backend.no_truncation()
    return Tokenizer(backend, start=start)


def keep_in_gguf(metadata: Mapping[str, Any], kept: Mapping[int, int]) -> dict[str, Any]:
    """The keys of a GGUF's metadata that change."""
    old = metadata[f"{_GGUF}tokens"]
    count = len(old)
    changed: dict[str, Any] = {}
    for name in ("tokens", "token_type", "scores"):
        values = metadata.get(_GGUF + name)
        if values is not None and len(values) == count:
            changed[_GGUF + name] = [values[i] for i in kept]
    texts = dict.fromkeys(changed[f"{_GGUF}tokens"], 0)
    merges = metadata.get(f"{_GGUF}merges")
    if merges is not None:
        changed[f"{_GGUF}merges"] = [merge for merge in merges if _stays(merge, texts, "")]
    named = {key: value for key, value in metadata.items() if key.startswith(_GGUF)}
    whole = metadata.get("tokenizer.huggingface.json")
    if isinstance(whole, str):
        changed["tokenizer.huggingface.json"] = _tokenizer_json(whole, kept)
    return changed | renumbered(named, kept)


def keep_in_files(files: Mapping[str, bytes], kept: Mapping[int, int]) -> dict[str, bytes]:
    """The tokenizer's files and others with token ids, where they change. `files` are those beside the weights."""
    texts = {name: decode_json(raw, name) for name, raw in files.items() if name in _CHANGED or name in ID_FILES}
    changed = {}
    for name, text in texts.items():
        new = _CHANGED[name](text, kept) if name in _CHANGED else text
        if name in ID_FILES:
            for key, value in renumbered(parse_json(new.encode(), name), kept).items():
                new = set_value(new, (key,), value)
        if new != text:
            changed[name] = new.encode()
    if "merges.txt" in files and "vocab.json" in changed:
        changed["merges.txt"] = _merges_txt(
            files["merges.txt"].decode(), parse_json(changed["vocab.json"], "")
        ).encode()
    return changed


def stale_files(names: Sequence[str]) -> tuple[str, ...]:
    """Files of the old tokenizer in forms that are not rewritten; tokenizer.json takes their place."""
    return tuple(name for name in names if _STALE.search(name))


def _stays(merge: str | Sequence[str], vocab: Mapping[str, Any], prefix: str) -> bool:
    left, right = split_merge(merge)
    return left in vocab and right in vocab and joined(left, right, prefix) in vocab


def _processor(processor: Mapping[str, Any], kept: Mapping[int, int]) -> dict[str, Any]:
    """The ids in a post-processor, which adds special tokens."""
    changed = dict(processor)
    if isinstance(processor.get("processors"), list):
        changed["processors"] = [_processor(inner, kept) for inner in processor["processors"]]
    if isinstance(processor.get("special_tokens"), Mapping):
        changed["special_tokens"] = {
            text: {**entry, "ids": [kept[i] for i in entry["ids"]]}
            for text, entry in processor["special_tokens"].items()
        }
    for name in ("sep", "cls"):
        if isinstance(processor.get(name), list):
            text, i = processor[name]
            changed[name] = [text, kept[i]]
    return changed


def _tokenizer_json(text: str, kept: Mapping[int, int]) -> str:
    changed = keep_in_json(parse_json(text.encode(), "tokenizer.json"), kept)
    return json.dumps(changed, ensure_ascii=False, indent=2 if text[:2].isspace() or "\n" in text[:8] else None)


def _tokenizer_config(text: str, kept: Mapping[int, int]) -> str:
    decoder = parse_json(text.encode(), "tokenizer_config.json").get("added_tokens_decoder")
    if not isinstance(decoder, Mapping):
        return text
    new = {str(kept[int(i)]): entry for i, entry in decoder.items() if i.isdigit() and int(i) in kept}
    return set_value(text, ("added_tokens_decoder",), new) if new != decoder else text


def _ids_by_text(text: str, kept: Mapping[int, int]) -> str:
    """added_tokens.json and vocab.json."""
    listed = parse_json(text.encode(), "the vocabulary")
    new = {token: kept[i] for token, i in listed.items() if i in kept}
    return json.dumps(new, ensure_ascii=False, indent=2 if "\n" in text[:8] else None) + "\n" * text.endswith("\n")


def _vocab_txt(text: str, kept: Mapping[int, int]) -> str:
    """One token per line; the id is the line."""
    lines = text.split("\n")
    return "\n".join(line for i, line in enumerate(lines) if i in kept) + "\n" * text.endswith("\n")


def _merges_txt(text: str, vocab: Mapping[str, Any]) -> str:
    lines = text.split("\n")
    return "\n".join(
        line for line in lines if line.startswith("#version") or not line.strip() or _stays(line, vocab, "")
    )


_CHANGED = {
    "tokenizer.json": _tokenizer_json,
    "tokenizer_config.json": _tokenizer_config,
    "added_tokens.json": _ids_by_text,
    "vocab.json": _ids_by_text,
    "vocab.txt": _vocab_txt,
}


def check_ids(before: Tokenizer, after: Tokenizer, kept: Mapping[int, int]) -> None:
    """Refuse a tokenizer whose kept tokens do not have the ids that their rows have."""
    for old, new in kept.items():
        expected, found = before.backend.id_to_token(old), after.backend.id_to_token(new)
        if expected != found:
            raise BadRequest(
                f"the token {expected!r} (id {old:,}) would get an id other than {new:,}; this tokenizer numbers its "
                "added tokens in a way that cannot be trimmed"
            )
