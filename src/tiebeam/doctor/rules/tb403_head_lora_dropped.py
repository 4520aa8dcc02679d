"""TB403: llama.cpp cannot apply the head's part of this adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_adapter import ExaminedAdapter
from tiebeam.doctor.examples import head_lora, write_adapter
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step, merge_steps


def check(adapter: ExaminedAdapter) -> Iterator[Evidence]:
    copied = adapter.breaks_tie and adapter.head.copy and not adapter.embed.copy
    if adapter.base_is_tied and (adapter.head.lora or copied):
        yield Evidence(f"the adapter changes the head; the base stores only {adapter.matrix.name}")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        *merge_steps(at, "Merge it, which stores the head as a tensor of its own, then convert the merged model"),
        Step("With PEFT, untie the base, merge into the untied one, then convert", f"tiebeam untie {at.base} {at.out}"),
    )


def example(directory: Path) -> Path:
    return write_adapter(directory, head_lora(), tied=True)


RULE = Rule(
    code="TB403",
    severity=Severity.WARNING,
    title="llama.cpp cannot apply the head's part of this adapter",
    symptoms="The adapter works in transformers. llama.cpp refuses it (LoRA tensor 'output.weight' does not exist in "
    "base model), or an older version has no effect on the new tokens.",
    cause="A tied base has no output.weight in GGUF that the head's LoRA could apply to. A full copy of the head is "
    "not a LoRA factor, and the adapter's converter stops there.",
    detection="The adapter has LoRA factors for the head of a tied base, or a full copy of the head only.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("llama.cpp#9065",),
)
