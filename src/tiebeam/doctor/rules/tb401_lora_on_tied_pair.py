"""TB401: the adapter changes one matrix of a tied base."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_adapter import ExaminedAdapter
from tiebeam.doctor.examples import head_lora, write_adapter
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step, merge_steps


def check(adapter: ExaminedAdapter) -> Iterator[Evidence]:
    names = [name for name, part in (("the embedding", adapter.embed), ("the head", adapter.head)) if part.lora]
    if names and adapter.base_is_tied:
        base = adapter.base
        kept = "" if adapter.breaks_tie else ", trained with ensure_weight_tying"
        yield Evidence(f"LoRA on {' and '.join(names)}{kept}; the base is {base.tie} ({base.pair.declared_by})")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        *merge_steps(at, "Merge it with tiebeam; the result is what was trained, with two matrices"),
        Step(
            "With PEFT, untie the base and merge this adapter into the untied one",
            f"tiebeam untie {at.base} {at.out}",
        ),
        Step(
            "If it was trained with ensure_weight_tying, first set that to false in adapter_config.json and list both "
            "matrices in target_modules; otherwise PEFT leaves the head's factors out",
        ),
        Step(
            "Next time, to stay tied, train new tokens by trainable_token_indices, or the whole matrix by "
            "modules_to_save with ensure_weight_tying=True",
        ),
    )


def example(directory: Path) -> Path:
    return write_adapter(directory, head_lora(), tied=True)


RULE = Rule(
    code="TB401",
    severity=Severity.WARNING,
    title="the adapter changes one matrix of a tied base",
    symptoms="The merged model is worse than the base with the adapter.",
    cause="LoRA on the head or on the embedding of a tied model. In training the two uses of the matrix get separate "
    "changes; merging adds them to the one tied matrix, so each use gets the other's change too. With "
    "ensure_weight_tying PEFT 0.21.2 adds the same change twice.",
    detection="The adapter has LoRA factors for the embedding or the head, and the base is tied.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("peft#2018", "peft#2777"),
)
