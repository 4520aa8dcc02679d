"""TB206: an alias is noted only in the file's metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.fix import DROP_ALIASES, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    dropped, kept = next(iter(model.checkpoint.aliases.items()), (None, None))
    embed = model.pair.embed
    if embed is not None and model.pair.head is None and kept == embed.name:
        yield Evidence(f"__metadata__ has {dropped} = {kept}")


def fix(model: ExaminedCheckpoint) -> Repair:
    return DROP_ALIASES


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Nothing needs a fix if the config declares the tie"),
        Step("To remove the note", at.fix),
    )


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0)}, {HEAD: EMBED}, tie_word_embeddings=True)


RULE = Rule(
    code="TB206",
    severity=Severity.NOTE,
    title="an alias is noted only in the file's metadata",
    symptoms="Another loader reports a missing key.",
    cause="safetensors.torch.save_model wrote {dropped name: kept name} into __metadata__. Only "
    "safetensors.torch.load_model reads it.",
    detection="The metadata of a safetensors file names the embedding as the kept tensor of an alias; no head is "
    "stored.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
    seen_in=("safetensors#493", "Megatron-Bridge#919"),
)
