"""TB706: rows hold NaN or infinity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, matrix, write_llama
from tiebeam.doctor.extend_advice import can_repair, extend_steps
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    for part in model.rows.matrices if model.rows else ():
        broken = sorted(row for group in part.groups if group.kind in ("nan", "inf") for row in group.rows)
        if broken:
            shown = ", ".join(map(str, broken[:8])) + (", ..." if len(broken) > 8 else "")
            told = f"{part.name}: {len(broken):,} of {part.rows:,} rows hold NaN or infinity (rows {shown})"
            yield Evidence(told, extend=can_repair(model))


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Go back to the last checkpoint without them: values that are lost cannot be computed"),
        *extend_steps(at, "If there is none, start these rows anew from the mean of the others", "--repair"),
        Step("List the rows with their tokens", f"tiebeam doctor {at.model} --rows"),
    )


def example(directory: Path) -> Path:
    values = matrix(0)
    values[3, 2] = float("nan")
    return write_llama(directory, {EMBED: values}, tie_word_embeddings=True)


RULE = Rule(
    code="TB706",
    severity=Severity.ERROR,
    title="rows hold NaN or infinity",
    symptoms="Logits and gradients are NaN: for every text if the head has such a row, for texts with the token if the "
    "embedding has it.",
    cause="Training in float16 overflowed, or rows that were never written (empty memory) were saved.",
    detection="Every row of both matrices is read: always for local float types, else with `doctor --rows`.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("unsloth#658", "unsloth#1053", "axolotl#1771"),
)
