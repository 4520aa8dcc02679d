"""TB709: the quantizer's skip list leaves the head unprotected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.fix import Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.doctor.vocabulary_fixes import PROTECT_HEAD
from tiebeam.inspection.skip_lists import protects_head, skip_lists

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    pair = model.pair
    if pair.encoder or "head" in model.report.packed or (pair.head is None and "embed" in model.report.packed):
        return  # no head, or a head that was packed on purpose: the loader must not skip it
    names = ("lm_head", *((pair.head.name,) if pair.head else ()))
    for path, listed in skip_lists(model.checkpoint.config or {}).items():
        if not protects_head(listed, names):
            yield Evidence(
                f"config.json: {'.'.join(path)} = {listed} does not name lm_head, and the head is not packed"
            )


def fix(model: ExaminedCheckpoint) -> Repair:
    return PROTECT_HEAD


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Add lm_head to the list", at.fix),)


def example(directory: Path) -> Path:
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": ["vision_tower"]}
    tensors = {EMBED: matrix(0), HEAD: matrix(1)}
    return write_llama(directory, tensors, tie_word_embeddings=False, quantization_config=settings)


RULE = Rule(
    code="TB709",
    severity=Severity.WARNING,
    title="the quantizer's skip list leaves the head unprotected",
    symptoms="The head is quantized to 4 bits on load and the text gets worse, or the loader looks for packed names of "
    "the head that are not stored.",
    cause="A list of modules to skip replaces the default, which leaves the head alone. Whoever lists another module "
    "has to list lm_head too.",
    detection="quantization_config has a list (llm_int8_skip_modules, modules_to_not_convert, ignore) that is not "
    "empty and covers no name of the head, and the head is stored unpacked.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
    seen_in=("axolotl#3951", "axolotl#3953"),
)
