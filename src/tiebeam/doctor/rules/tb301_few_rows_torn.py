"""TB301: declared tied, and the two differ in a few rows only."""

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
    if model.tie is Tie.TORN and model.few_rows_differ and not model.report.packed:
        yield Evidence(model.comparison)


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("If the embedding's rows are right", f"tiebeam tie {at.model} {at.out} --keep embed --yes"),
        Step("If the head's rows are right", f"tiebeam tie {at.model} {at.out} --keep head --yes"),
        Step("To keep both as they are", f"tiebeam untie {at.model} {at.out}"),
    )


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0), HEAD: few_rows_changed()}, tie_word_embeddings=True)


RULE = Rule(
    code="TB301",
    severity=Severity.ERROR,
    title="declared tied, and the two differ in a few rows only",
    symptoms="The model reads the new tokens but never writes them, or writes them everywhere.",
    cause="The rows of added tokens were trained or initialized on one side only.",
    detection="The config declares a tie, both matrices are stored with the same shape, and a small part of the rows "
    "differ.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("LlamaFactory#6749", "peft#1750"),
)
