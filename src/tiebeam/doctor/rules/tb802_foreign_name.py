"""TB802: a vocabulary matrix is stored under another architecture's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, matrix, write_llama
from tiebeam.doctor.fix import RENAME_FOREIGN, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.families import lookup
from tiebeam.pair import Tie

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    name, architecture = model.foreign_name, lookup(model.report.architecture)
    if name is not None and architecture is not None:
        is_head = model.pair.head is not None and name == model.pair.head.name
        role, known = ("head", architecture.head) if is_head else ("embedding", architecture.embed)
        yield Evidence(f"the {role} is stored as {name}; {architecture.model_type} calls it {known[0]}")


def fix(model: ExaminedCheckpoint) -> Repair | None:
    dropped = model.tie is Tie.TWIN and model.pair.declared  # TB201 drops this copy
    return None if dropped or model.report.packed else RENAME_FOREIGN


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Rename it; no value changes", at.fix),)


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0), "output.weight": matrix(1)}, tie_word_embeddings=False)


RULE = Rule(
    code="TB802",
    severity=Severity.ERROR,
    title="a vocabulary matrix is stored under another architecture's name",
    symptoms="transformers loads the model and reports lm_head.weight as MISSING: the head is random. mlx-lm refuses "
    "the unknown name.",
    cause="The file was written by a tool with its own names (output.weight is the head in Meta's llama files, in "
    "torchtune and in GGUF) and only partly renamed.",
    detection="One matrix of the pair has a name of this architecture, the other is found by a name that the "
    "architecture does not use.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
)
