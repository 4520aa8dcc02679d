"""Plan a smaller vocabulary: what the text uses, the table of sizes, and the edit that the executor streams."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.checkpoint.json_files import parse_json, read_json
from tiebeam.errors import BadRequest, TiebeamError, UnreadableInput
from tiebeam.inspection import Report
from tiebeam.inspection.vocabulary_tensors import NGRAM, TOKEN_MAP
from tiebeam.limits import MAX_TOKENIZER
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.output_shards import companions, is_directory
from tiebeam.surgery.plan import Plan, Progress
from tiebeam.surgery.proof import Proof, prove
from tiebeam.surgery.source import Source
from tiebeam.surgery.tables_to_change import tables_to_change
from tiebeam.surgery.trim.count_tokens import TextCounts, count_tokens
from tiebeam.surgery.trim.ladder import (
    MEASURED_TOKENS,
    Ladder,
    TrimmedTokenizer,
    ladder_sizes,
    measure_ladder,
    saved_by,
)
from tiebeam.surgery.trim.select_tokens import Chooser, Selection
from tiebeam.surgery.trim.trim_proof import TextProof, differing_row, prove_texts
from tiebeam.surgery.vocabulary_rows import VocabularyTable, plan_rows
from tiebeam.tokenizer import Tokenizer, open_tokenizer
from tiebeam.tokenizer.keep_tokens import check_ids, keep_in_files, keep_in_gguf, stale_files
from tiebeam.tokenizer.token_id_keys import ID_FILES, needed_ids, renumbered, text_levels
from tiebeam.tokenizer.vocabulary_pieces import Pieces, read_pieces

ID_MAP = "id_map.json"
GGUF_ID_MAP = "tiebeam.id_map"
_LOST_IF_DROPPED = (2, 3, 4, 6)  # types of a GGUF's tokens: unknown, control, user-defined, byte
_SMALL = ("vocab.json", "vocab.txt", "merges.txt", "added_tokens.json", *ID_FILES)


@dataclass(frozen=True)
class Trimming:
    """A model and a text, counted: everything that a choice of rows needs. Get one from `prepare`."""

    source: Source
    tokenizer: Tokenizer
    document: Mapping[str, Any] = field(repr=False)
    pieces: Pieces
    text: TextCounts
    required: frozenset[int] = field(repr=False)
    tables: tuple[VocabularyTable, ...] = field(repr=False)
    once: Edit = field(repr=False)

    @property
    def rows(self) -> int:
        return self.source.report.vocabulary.rows or 0

    @cached_property
    def chooser(self) -> Chooser:
        return Chooser(self.pieces, self.text.counts, self.required)

    def select(
        self, keep: int | None = None, coverage: float | None = None, pad_to_multiple_of: int | None = None
    ) -> Selection:
        """The tokens that stay; `keep` rows, or the rows that cover this share of the text."""
        if (keep is None) == (coverage is None):
            raise BadRequest("give keep=N rows or coverage=SHARE of the text's tokens, one of the two")
        multiple = pad_to_multiple_of or 1
        if coverage is not None:
            return self.chooser.cover(coverage, multiple)
        assert keep is not None
        return self.chooser.keep(-(-keep // multiple) * multiple)

    def ladder(
        self,
        chosen: Sequence[Selection] = (),
        sizes: Sequence[int] | None = None,
        *,
        tokens: int = MEASURED_TOKENS,
        progress: Progress | None = None,
        engine: str = "auto",
        device: str | None = None,
    ) -> Ladder:
        """What several sizes cost on held-out text; `sizes` rows each, and those `chosen`."""
        return measure_ladder(
            self.source.checkpoint, self.document, self.tokenizer, ladder_sizes(self.chooser, chosen, sizes),
            self.text.held_out, tables=self.tables, parameters=self.source.report.params.stored, tokens=tokens,
            progress=progress, engine=engine, device=device,
        )  # fmt: skip

    def hot_ids(self, selection: Selection) -> list[int]:
        """The kept ids of the source, the most frequent first."""
        import numpy as np

        order = np.argsort(-self.text.counts[selection.kept], kind="stable")
        return [int(i) for i in selection.kept[order]]


def prepare(
    source: Source,
    text: Sequence[str | Path],
    *,
    keep_tokens: Sequence[str] = (),
    progress: Progress | None = None,
) -> Trimming:
    """Check the model, read its tokenizer and count the tokens of the text."""
    checkpoint = source.checkpoint
    tables, once = tables_to_change(source, converting=True)
    for tensor in source.report.vocabulary_tensors:
        if tensor.kind in (NGRAM, TOKEN_MAP):
            raise BadRequest(f"{tensor.name} ({tensor.kind}) depends on the ids themselves, which trimming changes")
    if checkpoint.format != "gguf" and not is_directory(checkpoint):
        raise BadRequest(f"{checkpoint.source} is a single file; name its directory, for the tokenizer")
    tokenizer = open_tokenizer(checkpoint)
    if tokenizer is None:
        raise BadRequest(
            f"{checkpoint.source} has no tokenizer.json; write one with transformers first: "
            "AutoTokenizer.from_pretrained(SRC).save_pretrained(SRC)"
        )
    document = _document(checkpoint, tokenizer)
    pieces = read_pieces(document)
    rows = source.report.vocabulary.rows or 0
    required = _required(source, tokenizer, keep_tokens)
    without = [i for i in pieces.always | required if i >= rows]
    if without:
        raise BadRequest(
            f"{len(without):,} tokens have no row in the table of {rows:,} rows, id {min(without):,} among them; "
            f"give them rows first: tiebeam extend {checkpoint.source} DST --rows {max(without) + 1}"
        )
    counted = count_tokens(tokenizer, text, rows, progress)
    return Trimming(source, tokenizer, document, pieces, counted, required, tables, once)


def plan_trim(trimming: Trimming, selection: Selection, ladder: Ladder | None = None) -> Plan:
    """Plan to keep the rows and tokens of `selection`, and no others."""
    source, rows = trimming.source, trimming.rows
    trimmed = TrimmedTokenizer.of(trimming.document, trimming.tokenizer, selection)
    check_ids(trimming.tokenizer, trimmed.tokenizer, trimmed.kept)
    saved = saved_by(trimming.tables, selection.rows)
    before = source.report.params.stored
    facts = {
        "rows": {"before": rows, "after": selection.rows},
        "parameters": {"before": before, "after": before - saved[0]},
        "bytes_saved": saved[1],
        "selection": selection.to_dict(),
        "text": {
            "bytes": trimming.text.nbytes,
            "tokens": trimming.text.tokens,
            "held_out_bytes": trimming.text.held_out_bytes,
        },
        "tokenizer": trimming.pieces.kind,
        "ladder": ladder.to_dict() if ladder else None,
    }
    if selection.rows == rows:
        nothing = f"all {rows:,} rows of {source.report.model} stay"
        return Plan("trim", source, Edit(), lambda report: None, nothing_to_do=nothing, facts=facts)
    check = _Check(trimming, selection)
    return Plan(
        "trim",
        source,
        plan_rows(source, selection.kept, {}, trimming.tables) | trimming.once | _tokenizer_edit(trimming, trimmed),
        check.expect,
        prove=check.prove,
        measure=lambda result: check.texts.to_dict(),
        inputs=trimming.text.files,
        facts=facts,
    )


@dataclass
class _Check:
    """What is checked about the written model: first its tables and texts, then its logits."""

    trimming: Trimming
    selection: Selection
    texts: TextProof = field(default_factory=lambda: TextProof(0, 0, ()))

    def expect(self, report: Report) -> str | None:
        source, rows, vocabulary = self.trimming.source, self.selection.rows, report.vocabulary
        if report.tie is not source.report.tie and not self.trimming.once:
            return f"its pair is {report.tie}, not {source.report.tie}"
        if vocabulary.rows != rows or vocabulary.vocab_size not in (None, rows) or vocabulary.tokenizer_ids != rows:
            return f"its vocabulary is {vocabulary}, not {rows:,} everywhere"
        expected = source.report.params.stored - saved_by(self.trimming.tables, rows)[0]
        if report.params.stored != expected:
            return f"it has {report.params.stored:,} parameters, not {expected:,}"
        result = open_checkpoint(report.model)
        problem = differing_row(result, self.trimming.tables, self.selection.kept)
        if problem:
            return problem
        try:
            after = open_tokenizer(result)
        except TiebeamError as error:
            return f"its tokenizer cannot be read ({error})"
        assert after is not None
        text = self.trimming.text
        self.texts = prove_texts(
            self.trimming.tokenizer, after, self.selection.kept, self.trimming.pieces.unknown,
            [*text.held_out, *text.sample],
        )  # fmt: skip
        return None

    def prove(self, result: Checkpoint, engine: str, device: str | None) -> Proof:
        import numpy as np

        source, kept = self.trimming.source, self.selection.kept
        from_gguf = source.converted and source.checkpoint.format == "gguf"
        rounded = source.layout.shards[0].entries[0].dtype if from_gguf else "F32"
        return prove(
            source.checkpoint, result, exact=not source.converted, rounded=rounded, engine=engine, device=device,
            kept=(kept, np.arange(len(kept))), probed=self.texts.run,
        )  # fmt: skip


def _document(checkpoint: Checkpoint, tokenizer: Tokenizer) -> dict[str, Any]:
    """tokenizer.json, parsed; for a GGUF, what its tokenizer would be as one."""
    if checkpoint.format == "gguf":
        return dict(json.loads(tokenizer.backend.to_str()))
    files = checkpoint.files
    return parse_json(files.read("tokenizer.json", 0, files.size("tokenizer.json")), "tokenizer.json")


def _required(source: Source, tokenizer: Tokenizer, keep_tokens: Iterable[str]) -> frozenset[int]:
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


def _tokenizer_edit(trimming: Trimming, trimmed: TrimmedTokenizer) -> Edit:
    """The tokenizer's files, the ids in the configs, and the map of new ids to old ones."""
    source, kept = trimming.source, trimmed.kept
    olds = list(kept)
    if source.is_gguf:
        return Edit(gguf={**keep_in_gguf(source.checkpoint.metadata, kept), GGUF_ID_MAP: olds})
    documents = keep_in_files(_files(source), kept)
    said = dict.fromkeys(documents, "token ids are renumbered")
    if "tokenizer.json" in documents:
        said["tokenizer.json"] = f"{len(olds):,} of {trimming.tokenizer.size:,} tokens stay"
    documents[ID_MAP] = (json.dumps({str(new): old for old, new in kept.items()}) + "\n").encode()
    said[ID_MAP] = "new id -> old id"
    config = {
        (*path, key): value
        for path, level in text_levels(source.layout.config or {}, trimming.rows)
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
