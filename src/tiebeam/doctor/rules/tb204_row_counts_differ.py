"""TB204: the embedding and the head have different numbers of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, VOCAB, matrix, write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.rows_differ and not _by_design(model):
        embed, head = model.pair.embed, model.pair.head
        assert embed
        assert head
        yield Evidence(f"{embed.name} has {embed.rows:,} rows, {head.name} has {head.rows:,}")


def _by_design(model: ExaminedCheckpoint) -> bool:
    """Mllama's embedding has 8 rows more than its head, for the image token."""
    embed, head = model.pair.embed, model.pair.head
    return (
        str(model.report.architecture).startswith("mllama")
        and embed is not None
        and head is not None
        and embed.rows == head.rows + 8
    )


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Decide by hand which vocabulary is right: the one that the tokenizer has"),
        Step("If the extra rows were never trained, cut them from the longer matrix"),
        Step("If they were trained, add as many rows to the shorter matrix and train those"),
    )


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0, VOCAB + 2), HEAD: matrix(1)}, tie_word_embeddings=False)


RULE = Rule(
    code="TB204",
    severity=Severity.ERROR,
    title="the embedding and the head have different numbers of rows",
    symptoms="RuntimeError: size mismatch on load, or new tokens that the model reads but never writes.",
    cause="The vocabulary was resized on one side only, usually by adding tokens to the embedding of a wrapped or "
    "partly loaded model.",
    detection="Both matrices are stored unpacked and their first dimensions differ.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("LlamaFactory#6749", "peft#1750"),
)
