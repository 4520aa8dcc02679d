"""Plan a smaller vocabulary: what the text uses, the table of sizes, and the edit that the executor streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.errors import BadRequest, TiebeamError
from tiebeam.inspection import Report
from tiebeam.inspection.vocabulary_tensors import NGRAM, TOKEN_MAP
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.output_shards import is_directory
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
from tiebeam.surgery.trim.tokenizer_changes import required_ids, tokenizer_document, tokenizer_edit
from tiebeam.surgery.trim.trim_proof import TextProof, differing_row, prove_texts
from tiebeam.surgery.vocabulary_rows import VocabularyTable, plan_rows
from tiebeam.tokenizer import Tokenizer, open_tokenizer
from tiebeam.tokenizer.keep_tokens import check_ids
from tiebeam.tokenizer.vocabulary_pieces import Pieces, read_pieces


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
        rows = keep if keep is not None else self.chooser.rows_to_cover(coverage or 0.0)
        selection = self.chooser.keep(-(-rows // multiple) * multiple)
        if selection.rows % multiple:
            raise BadRequest(
                f"pad_to_multiple_of={multiple} needs more rows than the {selection.rows:,} tokens that there are; "
                "keep fewer, or leave it out"
            )
        return selection

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
    if (checkpoint.config or {}).get("bigram_rows"):  # a hashed table of our own models (train --bigram-rows)
        raise BadRequest("bigram.weight is addressed by hashes of token ids, which trimming changes")
    if checkpoint.format != "gguf" and not is_directory(checkpoint):
        raise BadRequest(f"{checkpoint.source} is a single file; name its directory, for the tokenizer")
    tokenizer = open_tokenizer(checkpoint)
    if tokenizer is None:
        raise BadRequest(
            f"{checkpoint.source} has no tokenizer.json; write one with transformers first: "
            "AutoTokenizer.from_pretrained(SRC).save_pretrained(SRC)"
        )
    document = tokenizer_document(checkpoint, tokenizer)
    pieces = read_pieces(document)
    rows = source.report.vocabulary.rows or 0
    required = required_ids(source, tokenizer, keep_tokens)
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
        plan_rows(source, selection.kept, {}, trimming.tables) | trimming.once | tokenizer_edit(source, trimmed.kept),
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
