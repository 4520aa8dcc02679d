"""TB102: declared untied, but no head is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, matrix, write_llama
from tiebeam.doctor.fix import DECLARE_TIED, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.pair import Tie

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.declares and model.tie is Tie.HEADLESS:
        assert model.pair.embed is not None
        yield Evidence(f"{model.pair.declared_by} is untied; {model.pair.embed.name} is stored and no head is")


def fix(model: ExaminedCheckpoint) -> Repair:
    return DECLARE_TIED


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("If the model was trained tied, set the flag to true", at.fix),
        Step("To store a head with the values of the embedding instead", f"tiebeam untie {at.model} {at.out}"),
        Step("If it was trained untied, the head is lost: consolidate the training checkpoint again"),
    )


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0)}, tie_word_embeddings=False)


RULE = Rule(
    code="TB102",
    severity=Severity.ERROR,
    title="declared untied, but no head is stored",
    symptoms="The model loads without an error; only a MISSING line is printed. The head is random, and the text "
    "differs after every load.",
    cause="The flag was set to false in a text editor, or it is absent and the architecture's default is untied, or "
    "the head was lost when a sharded training checkpoint was consolidated.",
    detection="The config declares untied (by its flag or by the default of its type), and only the embedding is "
    "stored.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
    seen_in=("transformers#44358", "transformers#11903", "vllm#53020", "DeepSpeed#1896", "DeepSpeed#3824"),
)
