"""TB201: the stored head repeats the embedding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.fix import DROP_HEAD, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.pair import Tie


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.tie is Tie.TWIN and model.pair.declared is not False:
        yield Evidence(repeated(model), keep=finer(model))


def repeated(model: ExaminedCheckpoint) -> str:
    """Which tensor is stored twice, and what that costs."""
    embed, head = model.pair.embed, model.pair.head
    assert embed
    assert head
    return f"{head.name} repeats {embed.name}: {head.nbytes:,} bytes ({model.report.how})"


def finer(model: ExaminedCheckpoint) -> str:
    """The matrix to keep if the two are equal only up to rounding: the one with more bytes. Else ""."""
    if not model.equal_up_to_rounding:
        return ""
    embed, head = model.pair.embed, model.pair.head
    assert embed
    assert head
    return "head" if head.nbytes > embed.nbytes else "embed"


def drop_copy(at: Names, text: str) -> Step:
    """The step that leaves one of two equal matrices."""
    if at.keep:
        which = {"embed": "the embedding", "head": "the head"}[at.keep]
        why = f"the two are equal only up to rounding, so keep the finer one, {which}"
        return Step(f"{text}; {why}", f"tiebeam tie {at.model} {at.out} --keep {at.keep} --yes")
    return Step(f"{text}; no value changes", f"tiebeam tie {at.model} {at.out}")


def fix(model: ExaminedCheckpoint) -> Repair | None:
    return DROP_HEAD if model.pair.declared and not finer(model) else None


def steps(at: Names) -> tuple[Step, ...]:
    return (drop_copy(at, "Drop the copy"),)


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0), HEAD: matrix(0)}, tie_word_embeddings=True)


RULE = Rule(
    code="TB201",
    severity=Severity.WARNING,
    title="the stored head repeats the embedding",
    symptoms="The file is larger than it should be, or a loader that knows the tie stops at an unexpected "
    "lm_head.weight.",
    cause="The alias was lost (a state dict saved by hand, a merge, a quantizer) and both copies were written.",
    detection="Both matrices are stored, their values are equal, and the config does not declare untied.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
    seen_in=("mlx-lm#1298", "sglang#2935", "accelerate#3870", "transformers#48972", "llm-compressor#2798"),
)
