"""TB708: scales of a packed matrix are stored without its codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import DIM, EMBED, VOCAB, matrix, write_llama
from tiebeam.doctor.fix import Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.doctor.vocabulary_fixes import DROP_ORPHANS, orphaned_parts

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    orphans = orphaned_parts(model.checkpoint)
    if orphans:
        yield Evidence(f"{', '.join(orphans)}: the codes of this matrix are not stored")


def fix(model: ExaminedCheckpoint) -> Repair | None:
    return DROP_ORPHANS if model.pair.embed is not None else None


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Drop them; the tied embedding is the head", at.fix),)


def example(directory: Path) -> Path:
    import numpy as np

    orphans = {f"lm_head.{part}": np.ones((VOCAB, DIM // 8), np.float16) for part in ("scales", "biases")}
    return write_llama(directory, {EMBED: matrix(0), **orphans}, tie_word_embeddings=True)


RULE = Rule(
    code="TB708",
    severity=Severity.ERROR,
    title="scales of a packed matrix are stored without its codes",
    symptoms="Unhandled keys lm_head.scales, lm_head.biases on load in mlx-lm or mlx-swift.",
    cause="A tool dropped lm_head.weight from a quantized model to tie it, and left the scales and biases of the "
    "packed head behind.",
    detection="A scales, biases, zero-point or absmax tensor of the embedding or the head is stored, and no weight, "
    "qweight or weight_packed of the same layer is.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
    seen_in=("mlx-swift-lm#490", "mlx-swift-lm#525"),
)
