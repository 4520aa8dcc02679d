"""TB401: the adapter changes one matrix of a tied base."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined import ExaminedAdapter
from tiebeam.doctor.examples import head_lora, write_adapter
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(adapter: ExaminedAdapter) -> Iterator[Evidence]:
    names = [name for name, part in (("the embedding", adapter.embed), ("the head", adapter.head)) if part.lora]
    if names and adapter.breaks_tie:
        base = adapter.base
        yield Evidence(f"LoRA on {' and '.join(names)}; the base is {base.tie} ({base.pair.declared_by})")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Untie the base and train the adapter on the untied one", f"tiebeam untie {at.base} {at.out}"),
        Step("Or train with ensure_weight_tying=True in PEFT's LoraConfig"),
    )


def example(directory: Path) -> Path:
    return write_adapter(directory, head_lora(), tied=True)


RULE = Rule(
    code="TB401",
    severity=Severity.WARNING,
    title="the adapter changes one matrix of a tied base",
    symptoms="The merged model is worse than the base with the adapter.",
    cause="LoRA on the head or on the embedding of a tied model. In training the two behave differently; merging "
    "changes the one shared matrix, and so the other use of it too.",
    detection="The adapter has LoRA factors for the embedding or the head, the base is tied, and ensure_weight_tying "
    "is not set.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("peft#2018", "peft#2777"),
)
