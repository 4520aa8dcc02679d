"""TB202: declared untied, and the two matrices are equal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.doctor.rules.tb201_redundant_head import repeated
from tiebeam.pair import Tie

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.tie is Tie.TWIN and model.pair.declared is False and not model.rounded and model.can_tie:
        yield Evidence(repeated(model))


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("If you are about to train it untied, nothing needs a fix"),
        Step("Otherwise tie it, which saves one matrix; no value changes", f"tiebeam tie {at.model} {at.out}"),
    )


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0), HEAD: matrix(0)}, tie_word_embeddings=False)


RULE = Rule(
    code="TB202",
    severity=Severity.NOTE,
    title="declared untied, and the two matrices are equal",
    symptoms="The parameter count is one matrix higher than that of other models of the family.",
    cause="The model was just untied, or its head was initialized from the embedding and never trained.",
    detection="Both matrices are stored with one dtype, their values are equal, and the config declares untied.",
    check=check,
    steps=steps,
    example=example,
)
