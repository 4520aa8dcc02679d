"""TB804: the flag is neither true nor false."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, matrix, write_llama
from tiebeam.doctor.fix import WRITE_BOOLEAN, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.invalid_flags:
        written = [f"{'.'.join(path)} is {json.dumps(value)[:40]}" for path, value in model.invalid_flags.items()]
        yield Evidence(f"{model.checkpoint.config_name}: {', '.join(written)}")


def fix(model: ExaminedCheckpoint) -> Repair:
    return WRITE_BOOLEAN


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Write true or false, as the weights are stored", at.fix),)


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0)}, tie_word_embeddings=None)


RULE = Rule(
    code="TB804",
    severity=Severity.ERROR,
    title="the flag is neither true nor false",
    symptoms="transformers 5: StrictDataclassFieldValidationError, expected bool. transformers 4 loads null as false, "
    "with a random head if none is stored.",
    cause='A tool or a person wrote null, a number or a string such as "true" as tie_word_embeddings.',
    detection="The flag at a level of the config is not a boolean, and the config class of this type checks it.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
)
