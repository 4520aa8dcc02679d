"""TB207: a training checkpoint that is not consolidated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.checkpoint.distributed.detect import FORMATS
from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.checkpoint.format in FORMATS:
        yield Evidence(model.checkpoint.notes[0])


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("`tiebeam tie`, `tiebeam untie` and `tiebeam doctor --fix` read it as it is and write the whole model"),
        Step(
            "Otherwise consolidate it with its own tool and run the doctor on the result. For PyTorch DCP (FSDP)",
            f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {at.model} {at.out}.pt",
        ),
        Step(
            "For DeepSpeed, with the script inside the checkpoint",
            f"python {at.model}/zero_to_fp32.py {at.model} {at.out}",
        ),
        Step("For FSDP under accelerate", f"accelerate merge-weights {at.model} {at.out}"),
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
    steps=steps,
    example=example,
    seen_in=("DeepSpeed#1896", "DeepSpeed#3824"),
)
