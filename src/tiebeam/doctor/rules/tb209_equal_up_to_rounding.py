"""TB209: the head repeats the embedding, rounded differently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.pair import Tie

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.tie is Tie.TWIN and model.rounded and model.can_tie:
        severity = None if model.pair.declared else Severity.NOTE
        yield Evidence(model.comparison, severity, keep=finer(model))


def finer(model: ExaminedCheckpoint) -> str:
    """The matrix with more bytes: it was rounded less."""
    embed, head = model.pair.embed, model.pair.head
    assert embed
    assert head
    return "head" if head.nbytes > embed.nbytes else "embed"


def steps(at: Names) -> tuple[Step, ...]:
    which = "the head" if at.keep == "head" else "the embedding"
    command = f"tiebeam tie {at.model} {at.out} --keep {at.keep or 'embed'} --yes"
    return (Step(f"Keep the finer of the two, {which}, for both", command),)


def example(directory: Path) -> Path:
    import numpy as np

    embed = matrix(0)
    return write_llama(directory, {EMBED: embed, HEAD: embed.astype(np.float16)}, tie_word_embeddings=True)


RULE = Rule(
    code="TB209",
    severity=Severity.WARNING,
    title="the head repeats the embedding, rounded differently",
    symptoms="A tied model stores two matrices of different precision. transformers 5 keeps both and warns; others "
    "drop the head.",
    cause="One of the two copies was cast or quantized and the other was not.",
    detection="Both matrices are stored. Values of two float types are equal after the finer is rounded to the "
    "coarser; rows of quantized types have the same direction and length. A note if the config does not declare a tie.",
    check=check,
    steps=steps,
    example=example,
)
