"""TB104: the flag is absent, and loaders assume different defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.fix import WRITE_FLAG, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    architecture, declared = model.report.architecture, model.pair.declared
    if not model.declares or model.flags:
        return
    from tiebeam.doctor.loaders import mlx_lm

    if mlx_lm.default(architecture) not in (None, declared):
        words = {True: "tied", False: "untied", None: "nothing"}
        assumed = f"transformers assumes {words[declared]}, mlx-lm {words[mlx_lm.default(architecture)]}"
        yield Evidence(f"{architecture}: {assumed}")


def fix(model: ExaminedCheckpoint) -> Repair:
    return WRITE_FLAG


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Write the flag", at.fix),)


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0), HEAD: matrix(1)})


RULE = Rule(
    code="TB104",
    severity=Severity.WARNING,
    title="the flag is absent, and loaders assume different defaults",
    symptoms="The same files work in transformers and lose their head in mlx-lm.",
    cause="config.json has no tie_word_embeddings. Each library has a default per architecture, and they differ: for "
    "llama, transformers assumes untied and mlx-lm tied.",
    detection="No level of the config has the flag, and the default of transformers for this type is not mlx-lm's.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
)
