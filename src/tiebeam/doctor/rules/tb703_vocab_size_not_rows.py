"""TB703: vocab_size is not the number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, VOCAB, matrix, write_llama
from tiebeam.doctor.fix import Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.doctor.vocabulary_fixes import DECLARE_ROWS

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    vocabulary, report = model.report.vocabulary, model.report
    stored = {m.rows for m in (report.pair.embed, report.pair.head) if m is not None}
    declared = vocabulary.vocab_size
    if model.is_gguf or declared is None or len(stored) != 1 or declared in stored or report.draft:
        return
    (rows,) = stored
    tail = ""
    if vocabulary.tokenizer_ids is not None and declared < vocabulary.tokenizer_ids <= rows:
        tail = f"; the tokens from {declared:,} to {vocabulary.tokenizer_ids - 1:,} sit in the padding"
    severity = Severity.WARNING if report.guessed else None
    yield Evidence(f"{vocabulary}: vocab_size is {declared:,}, the table has {rows:,} rows{tail}", severity, rows=rows)


def fix(model: ExaminedCheckpoint) -> Repair | None:
    return DECLARE_ROWS if model.checkpoint.config_name == "config.json" else None


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step(f"If the weights are right, set vocab_size to {at.rows}, the number of rows", at.fix),
        Step("If config.json is right, the weights belong to another model: copy the right ones beside it"),
    )


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0)}, tie_word_embeddings=True, vocab_size=VOCAB - 4)


RULE = Rule(
    code="TB703",
    severity=Severity.ERROR,
    title="vocab_size is not the number of rows",
    symptoms="RuntimeError: size mismatch for embed_tokens.weight. transformers 4 and 5, mlx-lm and llama.cpp's "
    "converter refuse the model.",
    cause="The table was resized or padded and config.json was not saved with it, or the config of another model was "
    "copied beside the weights.",
    detection="The vocab_size of the language model's config is neither the rows of the embedding nor those of the "
    "head, and the two agree with each other.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
    seen_in=("LlamaFactory#8611", "Megatron-Bridge#625", "Megatron-Bridge#1853"),
)
