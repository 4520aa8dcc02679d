"""TB704: the table has rows that no token uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, VOCAB, matrix, write_llama, write_vocab
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    vocabulary = model.report.vocabulary
    if vocabulary.padding and not model.is_gguf and not model.report.draft:
        yield Evidence(
            f"{vocabulary}: rows {vocabulary.tokenizer_ids:,} to {(vocabulary.rows or 0) - 1:,} are padding "
            f"({vocabulary.padding:,} rows)"
        )


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Nothing is wrong. New tokens take these rows first, so a tool that initializes the end misses them"),
        Step("See whether a token uses a row that was never trained", f"tiebeam doctor {at.model} --rows"),
    )


def example(directory: Path) -> Path:
    write_llama(directory, {EMBED: matrix(0)}, tie_word_embeddings=True)
    return write_vocab(directory, VOCAB - 4)


RULE = Rule(
    code="TB704",
    severity=Severity.NOTE,
    title="the table has rows that no token uses",
    symptoms="Tokens that were added later never learn; a mask over the tokenizer's size does not fit the logits.",
    cause="Tables are padded to a multiple of 64 or 128 for speed. Added tokens fall into the padding, whose rows were "
    "never trained, while resize_token_embeddings() leaves the table as it is because it is large enough.",
    detection="The embedding has more rows than the tokenizer's highest id + 1.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("LlamaFactory#10547", "unsloth#3428", "mlx-vlm#1805"),
)
