"""TB101: declared tied, but two different matrices are stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.fix import DECLARE_UNTIED, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.pair import Tie

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.tie is Tie.TORN and model.values_differ and not model.few_rows_differ and not model.report.packed:
        yield Evidence(model.comparison)


def fix(model: ExaminedCheckpoint) -> Repair:
    return DECLARE_UNTIED


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("If the two are meant to differ (a merge, a trained head), set the flag to false", at.fix),
        Step(
            "If they are not, keep one of them; this changes the model",
            f"tiebeam tie {at.model} {at.out} --keep embed --yes",
        ),
    )


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0), HEAD: matrix(1)}, tie_word_embeddings=True)


RULE = Rule(
    code="TB101",
    severity=Severity.ERROR,
    title="declared tied, but two different matrices are stored",
    symptoms="The model writes gibberish after a merge in one program and works in another. transformers 5 keeps both "
    "matrices and warns, and so does vLLM since August 2026. transformers 4, older vLLM and mlx-lm drop the stored "
    "head. A later resize_token_embeddings() or "
    "tie_weights() overwrites it without a warning.",
    cause="Something changed one matrix and not the other, and tie_word_embeddings stayed true: a LoRA merge into the "
    "head, a fine-tune that trained the head separately, an edited file.",
    detection="The config declares a tie, both matrices are stored with the same shape, and most rows differ.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
    seen_in=("transformers#45127", "peft#2777", "unsloth#1971", "vllm#51063", "transformers#42612"),
)
