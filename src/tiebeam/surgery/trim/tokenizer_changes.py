"""What trimming changes outside the weights: the tokenizer, the token ids in every config, and the map of the ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.json_files import parse_json, read_json
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_TOKENIZER
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.output_shards import companions
from tiebeam.surgery.source import Source
from tiebeam.tokenizer import Tokenizer
from tiebeam.tokenizer.keep_tokens import keep_in_files, keep_in_gguf, stale_files
from tiebeam.tokenizer.token_id_keys import ID_FILES, needed_ids, renumbered, text_levels

ID_MAP = "id_map.json"
GGUF_ID_MAP = "tiebeam.id_map"
_LOST_IF_DROPPED = (2, 3, 4, 6)  # types of a GGUF's tokens: unknown, control, user-defined, byte
_SMALL = ("vocab.json", "vocab.txt", "merges.txt", "added_tokens.json", *ID_FILES)


def tokenizer_document(checkpoint: Checkpoint, tokenizer: Tokenizer) -> dict[str, Any]:
    """tokenizer.json, parsed; for a GGUF, what its tokenizer would be as one."""
    if checkpoint.format == "gguf":
        return dict(json.loads(tokenizer.backend.to_str()))
    files = checkpoint.files
    return parse_json(files.read("tokenizer.json", 0, files.size("tokenizer.json")), "tokenizer.json")


def required_ids(source: Source, tokenizer: Tokenizer, keep_tokens: Iterable[str]) -> frozenset[int]:
    """The ids that configs and metadata name, and those of the texts that are asked for."""
    checkpoint, rows = source.checkpoint, source.report.vocabulary.rows or 0
    found: set[int] = set()
    if checkpoint.format == "gguf":
        metadata = checkpoint.metadata
        found |= set(needed_ids({key: metadata[key] for key in metadata if key.startswith("tokenizer.ggml.")}))
        types = metadata.get("tokenizer.ggml.token_type") or ()
        found |= {i for i, kind in enumerate(types) if kind in _LOST_IF_DROPPED}
    else:
        for _, level in text_levels(checkpoint.config or {}, source.report.vocabulary.vocab_size):
            found |= set(needed_ids(level))
        for name in set(ID_FILES) & set(checkpoint.files.names()):
            found |= set(needed_ids(read_json(checkpoint.files, name)))
    found = {i for i in found if i < rows}  # an id beyond the table was wrong before
    for text in keep_tokens:
        known = tokenizer.backend.token_to_id(text)
        found |= {known} if known is not None else set()
        found |= set(tokenizer.backend.encode(text, add_special_tokens=False).ids)
    return frozenset(found)


def tokenizer_edit(source: Source, kept: Mapping[int, int]) -> Edit:
    """The tokenizer's files, the ids in the configs, and the map of new ids to old ones; `kept` is old id: new id."""
    if source.is_gguf:
        return Edit(gguf={**keep_in_gguf(source.checkpoint.metadata, kept), GGUF_ID_MAP: list(kept)})
    documents = keep_in_files(_files(source), kept)
    said = dict.fromkeys(documents, "token ids are renumbered")
    if "tokenizer.json" in documents:
        said["tokenizer.json"] = f"{len(kept):,} of {source.report.vocabulary.tokenizer_ids or 0:,} tokens stay"
    documents[ID_MAP] = (json.dumps({str(new): old for old, new in kept.items()}) + "\n").encode()
    said[ID_MAP] = "new id -> old id"
    config = {
        (*path, key): value
        for path, level in text_levels(source.layout.config or {}, source.report.vocabulary.rows)
        for key, value in renumbered(level, kept).items()
    }
    others = [name for name, _ in companions(source.checkpoint, set()).kept]
    leave = dict.fromkeys(stale_files(others), "it has the old tokens; tokenizer.json takes its place")
    return Edit(documents=documents, documented=said, config=config, leave=leave)


def _files(source: Source) -> dict[str, bytes]:
    """The files beside the weights that may name token ids."""
    if source.converted and source.checkpoint.format == "gguf":
        return dict(source.layout.documents)
    files = source.checkpoint.files
    found = {}
    for name in sorted({"tokenizer.json", *_SMALL} & set(files.names())):
        size = files.size(name)
        if size > MAX_TOKENIZER:
            raise UnreadableInput(f"{name} has {size:,} bytes, which exceeds the limit of {MAX_TOKENIZER:,}")
        found[name] = files.read(name, 0, size)
    return found
