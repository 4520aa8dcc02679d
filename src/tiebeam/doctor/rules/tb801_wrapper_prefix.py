"""TB801: a wrapper's prefix is on the tensor names, and loaders find nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, matrix, write_llama
from tiebeam.doctor.fix import STRIP_WRAPPERS, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.families.tensor_names import wrapper_prefix

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    wrapped = model.wrapped_names
    if wrapped:
        prefix = wrapper_prefix(model.checkpoint.tensors)
        name = min(wrapped, key=len)
        prefix = prefix or (name.removesuffix(wrapped[name]) if name.endswith(wrapped[name]) else "")
        where = f"{prefix} is in front of" if prefix else "a wrapper's level is in"
        count = f"{len(wrapped):,} of {len(model.checkpoint.tensors):,} names"
        yield Evidence(f"{where} {count}: {name} instead of {wrapped[name]}")


def fix(model: ExaminedCheckpoint) -> Repair | None:
    """None where LoRA factors are stored beside the weights (they need a merge), or two names would become one."""
    new = [model.wrapped_names.get(name, name) for name in model.checkpoint.tensors]
    unmerged = any(".lora_" in name or ".base_layer." in name or ".modules_to_save." in name for name in new)
    return None if unmerged or len(set(new)) < len(new) else STRIP_WRAPPERS


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Remove it from the names; no value changes", at.fix),
        Step("If LoRA factors are stored too, merge them with peft first: merge_and_unload(), then save_pretrained"),
    )


def example(directory: Path) -> Path:
    where = write_llama(directory, {}, tie_word_embeddings=True)
    from safetensors.numpy import load_file, save_file

    tensors = {**load_file(where / "model.safetensors"), EMBED: matrix(0)}
    save_file({f"module.{name}": values for name, values in tensors.items()}, where / "model.safetensors")
    return where


RULE = Rule(
    code="TB801",
    severity=Severity.ERROR,
    title="a wrapper's prefix is on the tensor names",
    symptoms="transformers loads the model without an error, but reports every weight as MISSING and UNEXPECTED and "
    "starts everything at random. mlx-lm and llama.cpp's converter refuse the file. Only a doubled model. is read by "
    "transformers 5.22, and not by transformers 4.",
    cause="The state dict of a wrapped model was saved: module. (DDP, DeepSpeed), _orig_mod. (torch.compile), "
    "base_model.model. (peft), model. once too often (a Lightning module's own), or others of that kind.",
    detection="Every tensor name starts with a level that only wrappers add, or names hold a level that torch.compile, "
    "FSDP or activation checkpointing inserts, or model. is in front of the model's own model. level.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
)
