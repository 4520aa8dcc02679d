"""TB209: the head repeats the embedding, rounded differently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.pair import Tie


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.tie is Tie.TWIN and model.rounded and model.can_tie:
        yield Evidence(model.comparison, None if model.pair.declared else Severity.NOTE)


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Keep the embedding's values for both", f"tiebeam tie {at.model} {at.out} --keep embed --yes"),
        Step("Or keep the head's", f"tiebeam tie {at.model} {at.out} --keep head --yes"),
    )


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
