"""TB105: this family ignores the flag in config.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import HEAD, matrix, write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.families.config_levels import FLAG

if TYPE_CHECKING:
    from pathlib import Path

T5_FAMILY = frozenset({"t5", "mt5", "umt5", "udop", "pop2piano", "longt5", "switch_transformers"})


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.declares and model.report.architecture in T5_FAMILY and model.flags.get((FLAG,)) is False:
        yield Evidence(f"config.json has {FLAG} = false; transformers 5 ties {model.report.architecture} all the same")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Loading needs no fix"),
        Step(
            "By hand, in code that resizes the vocabulary or calls tie_weights(): set model.config.tie_word_embeddings "
            "to False first"
        ),
    )


def example(directory: Path) -> Path:
    tensors = {"shared.weight": matrix(0), HEAD: matrix(1)}
    classes = ["T5ForConditionalGeneration"]
    return write_llama(directory, tensors, model_type="t5", architectures=classes, d_model=8, tie_word_embeddings=False)


RULE = Rule(
    code="TB105",
    severity=Severity.NOTE,
    title="this family ignores the flag in config.json",
    symptoms="A T5 v1.1 or Flan-T5 model works until its vocabulary is resized. Then its head is the embedding.",
    cause="For the T5 family, transformers 5 turns tie_word_embeddings: false into another setting (whether decoder "
    "outputs are scaled) and always declares the tie. A stored head that differs survives only because its "
    "values differ.",
    detection="The type belongs to the T5 family and the flag at the top of the config is false.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("transformers#48154",),
)
