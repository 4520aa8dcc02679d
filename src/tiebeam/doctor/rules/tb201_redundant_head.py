"""TB201: the stored head repeats the embedding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.fix import DROP_HEAD, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.pair import Tie

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.tie is Tie.TWIN and model.pair.declared is not False and not model.rounded and model.can_tie:
        yield Evidence(repeated(model))


def repeated(model: ExaminedCheckpoint) -> str:
    """Which tensor is stored twice, and what that costs."""
    embed, head = model.pair.embed, model.pair.head
    assert embed
    assert head
    return f"{head.name} repeats {embed.name}: {head.nbytes:,} bytes ({model.report.how})"


def fix(model: ExaminedCheckpoint) -> Repair | None:
    return DROP_HEAD if model.pair.declared else None


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Drop the copy; no value changes", f"tiebeam tie {at.model} {at.out}"),)


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0), HEAD: matrix(0)}, tie_word_embeddings=True)


RULE = Rule(
    code="TB201",
    severity=Severity.WARNING,
    title="the stored head repeats the embedding",
    symptoms="The file is larger than it should be, or a loader that knows the tie stops at an unexpected "
    "lm_head.weight.",
    cause="The alias was lost (a state dict saved by hand, a merge, a quantizer) and both copies were written.",
    detection="Both matrices are stored with one dtype, their values are equal, and the config does not declare "
    "untied. Not found where a loader needs both: llama.cpp requires output.weight in some architectures.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
    seen_in=("mlx-lm#1298", "sglang#2935", "accelerate#3870", "transformers#48972", "llm-compressor#2798"),
)
