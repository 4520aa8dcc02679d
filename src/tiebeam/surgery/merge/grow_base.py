"""Grow a base to the vocabulary of an adapter: rows that the adapter brings, and the tokenizer from its directory.

Tokens that were added before training need rows in every vocabulary tensor. The adapter's own rows replace those made
here; a tensor for which it has none (a head bias, the end that was not trained) gets the mean of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tiebeam.checkpoint.adapter_files import Adapter
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.limits import MAX_TOKEN_IDS
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.merge.adapter_parts import AdapterParts
from tiebeam.surgery.merge.stored_rows import EntryRows, mean_row
from tiebeam.surgery.source import Source
from tiebeam.surgery.vocabulary_rows import plan_rows, vocabulary_tables
from tiebeam.tokenizer.id_range import token_ids

_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
    "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja",
)  # fmt: skip
_LIMIT = 256 << 20


@dataclass(frozen=True)
class GrownVocabulary:
    """The edit that grows the base and brings the adapter's tokenizer; empty where neither is needed."""

    edit: Edit = field(default_factory=Edit)
    notes: tuple[str, ...] = ()


def grown_vocabulary(source: Source, adapters: Sequence[AdapterParts], needed: int) -> GrownVocabulary:
    """`source` with at least `needed` rows, and with the tokenizer of an adapter that has more tokens."""
    rows = source.report.vocabulary.rows or 0
    edit, notes = Edit(), []
    if needed > MAX_TOKEN_IDS:
        raise UnreadableInput(
            f"the adapter needs {needed:,} rows, which exceeds the limit of {MAX_TOKEN_IDS:,}; refusing to read"
        )
    if needed > rows:
        if source.is_gguf:
            raise BadRequest(
                f"the adapter has {needed:,} rows and {source.checkpoint.source} {rows:,}, and a GGUF has its "
                f"tokenizer inside; add the tokens first: tiebeam extend {source.checkpoint.source} DST.gguf --token "
                "TEXT"
            )
        edit = _grown(source, needed)
        notes.append(
            f"the adapter was trained with {needed - rows:,} more tokens, so the base grows to {needed:,} rows"
        )
    documents, found = _tokenizer(source, adapters, max(needed, rows))
    if needed > rows and not documents:
        notes.append("no adapter has the tokenizer of the new rows beside it; copy its files into the result")
    return GrownVocabulary(edit | Edit(documents=documents), (*notes, *found))


def _grown(source: Source, needed: int) -> Edit:
    import numpy as np

    tables = vocabulary_tables(source)
    rows = source.report.vocabulary.rows or 0
    new = {
        t.name: np.zeros(needed - rows, np.float32)
        if t.role == "bias"
        else np.broadcast_to(mean := mean_row(EntryRows(t.entry)), (needed - rows, *mean.shape))
        for t in tables
    }
    return plan_rows(source, [*range(rows), *range(-1, rows - needed - 1, -1)], new, tables)


def _tokenizer(source: Source, adapters: Sequence[AdapterParts], rows: int) -> tuple[dict[str, bytes], list[str]]:
    """The tokenizer's files of the adapter with the most tokens, if they are more than the base's."""
    best, most = None, source.report.vocabulary.tokenizer_ids or 0
    for parts in adapters:
        try:
            ids = token_ids(parts.adapter.weights)
        except UnreadableInput:
            continue
        if ids is not None and ids.size > most:
            best, most = parts.adapter, ids.size
    if best is None or source.is_gguf:
        return {}, []
    if most > rows:
        return {}, [
            f"the tokenizer in {best.source} has {most:,} ids and the result {rows:,} rows: the rows of the added "
            "tokens are not in the adapter, so the tokenizer of the base is kept"
        ]
    return _documents(best), [f"the tokenizer is that of {best.source}, which has {most:,} ids"]


def _documents(adapter: Adapter) -> dict[str, bytes]:
    names = [name for name in _TOKENIZER if name in adapter.files.names() and adapter.files.size(name) <= _LIMIT]
    return {name: adapter.files.read(name, 0, adapter.files.size(name)) for name in names}
