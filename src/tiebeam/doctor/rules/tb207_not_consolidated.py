"""TB207: a training checkpoint that is not consolidated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.checkpoint.distributed.detect import FORMATS
from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.fix import CONSOLIDATE, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.checkpoint.format in FORMATS:
        yield Evidence(model.checkpoint.notes[0])


def fix(model: ExaminedCheckpoint) -> Repair:
    return CONSOLIDATE


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Write the whole model as safetensors", at.fix),
        Step(
            "Or use the tool of the trainer: torch's dcp_to_torch for PyTorch DCP, zero_to_fp32.py inside a DeepSpeed "
            "checkpoint, accelerate merge-weights for FSDP; then run the doctor on the result"
        ),
    )


def example(directory: Path) -> Path:
    """An untied model saved as PyTorch DCP."""
    import torch
    from torch.distributed.checkpoint.state_dict_saver import save

    write_llama(directory, {}, tie_word_embeddings=False)
    (directory / "model.safetensors").unlink()
    state = {EMBED: torch.tensor(matrix(0)), HEAD: torch.tensor(matrix(1))}
    save({"model": state}, checkpoint_id=directory, no_dist=True)
    return directory


RULE = Rule(
    code="TB207",
    severity=Severity.NOTE,
    title="a training checkpoint that is not consolidated",
    symptoms="from_pretrained finds no weights in the directory, or a tied model comes out of the merge without its "
    "head, or with two.",
    cause="Each rank saved its own part: PyTorch DCP (FSDP), DeepSpeed ZeRO, or one file per rank. The other findings "
    "are about the parts put together.",
    detection="The directory is a PyTorch distributed checkpoint, a DeepSpeed checkpoint or a set of files per rank.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
    seen_in=("DeepSpeed#1896", "DeepSpeed#3824"),
)
