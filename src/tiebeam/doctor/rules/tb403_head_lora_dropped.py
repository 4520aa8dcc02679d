"""TB403: converters drop the head's part of this adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined import ExaminedAdapter
from tiebeam.doctor.examples import head_lora, write_adapter
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(adapter: ExaminedAdapter) -> Iterator[Evidence]:
    if adapter.breaks_tie and (adapter.head.lora or (adapter.head.copy and not adapter.embed.copy)):
        yield Evidence(f"the adapter changes the head; the base stores only {adapter.matrix.name}")


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Untie the base, merge into the untied one, then convert", f"tiebeam untie {at.base} {at.out}"),)


def example(directory: Path) -> Path:
    return write_adapter(directory, head_lora(), tied=True)


RULE = Rule(
    code="TB403",
    severity=Severity.WARNING,
    title="converters drop the head's part of this adapter",
    symptoms="The adapter works in transformers and has no effect on the new tokens in llama.cpp.",
    cause="When the base is tied, a conversion to GGUF has no tensor that the head's LoRA could apply to. It skips the "
    "LoRA without a message.",
    detection="The adapter changes the head, the base is tied, and ensure_weight_tying is not set.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("llama.cpp#9065",),
)
