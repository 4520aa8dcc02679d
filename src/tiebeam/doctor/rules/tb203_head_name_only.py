"""TB203: the one matrix is stored under the head's name only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.fix import RENAME_HEAD, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.pair import Tie

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.tie is Tie.SWAPPED:
        assert model.pair.head is not None
        severity = None if model.pair.declared else Severity.ERROR
        yield Evidence(f"{model.pair.head.name} is stored, the embedding is not", severity)


def fix(model: ExaminedCheckpoint) -> Repair | None:
    return RENAME_HEAD if model.pair.declared else None


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step(
            "If the model was trained tied, store the matrix under the embedding's name",
            f"tiebeam tie {at.model} {at.out}",
        ),
        Step("If it was trained untied, the embedding is lost: find the file that holds it"),
    )


def example(directory: Path) -> Path:
    return write_llama(directory, {HEAD: matrix(0)}, {EMBED: HEAD}, tie_word_embeddings=True)


RULE = Rule(
    code="TB203",
    severity=Severity.WARNING,
    title="the one matrix is stored under the head's name only",
    symptoms="transformers loads it if the flag is true. ONNX exporters, llama.cpp's converter and others miss the "
    "embedding.",
    cause="safetensors.torch.save_model keeps one of two names of a tensor, here the head's, and notes the alias in "
    "the file's metadata, which other loaders do not read.",
    detection="The head is stored and the embedding is not. It is an error if the config does not declare a tie.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
    seen_in=("onnxruntime-genai#1089", "transformers#48154"),
)
