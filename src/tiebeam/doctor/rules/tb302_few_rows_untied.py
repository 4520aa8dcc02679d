"""TB302: declared untied, but only a few rows differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, few_rows_changed, matrix, write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.pair import Tie

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.tie is Tie.UNTIED and model.few_rows_differ:
        yield Evidence(model.comparison)


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("If this is intended, nothing needs a fix"),
        Step(
            "Otherwise decide which rows are right and tie the two",
            f"tiebeam tie {at.model} {at.out} --keep embed --yes",
        ),
    )


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0), HEAD: few_rows_changed()}, tie_word_embeddings=False)


RULE = Rule(
    code="TB302",
    severity=Severity.WARNING,
    title="declared untied, but only a few rows differ",
    symptoms="Added tokens behave differently in the input and in the output.",
    cause="A tied matrix was copied into two, and only some tokens were trained on one side.",
    detection="The config declares untied, both matrices are stored with the same shape, and a small part of the rows "
    "differ.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("LlamaFactory#6749",),
)
