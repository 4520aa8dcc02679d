"""TB402: the adapter has a full copy of one matrix of a tied base."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_adapter import ExaminedAdapter
from tiebeam.doctor.examples import matrix, write_adapter
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step, merge_steps
from tiebeam.equality import compare


def check(adapter: ExaminedAdapter) -> Iterator[Evidence]:
    copies = [part.copy for part in (adapter.embed, adapter.head) if part.copy]
    if not adapter.breaks_tie or not copies:
        return
    if len(copies) == 1:
        yield Evidence(f"{copies[0]} is a full copy; the base is {adapter.base.tie}")
        return
    result = compare(adapter.weights, copies[0], copies[1])
    if not result.equal:
        yield Evidence(f"{copies[0]} and {copies[1]} are two copies: {result.how}")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        *merge_steps(at, "Merge it with tiebeam, which stores both matrices and sets the flag to false"),
        Step("Before training, untie the base and train on the untied one", f"tiebeam untie {at.base} {at.out}"),
        Step("After a merge, run `tiebeam doctor` on the merged model; --fix sets its flag to false"),
    )


def example(directory: Path) -> Path:
    return write_adapter(directory, {"lm_head.weight": matrix(1)}, tied=True, modules_to_save=["lm_head"])


RULE = Rule(
    code="TB402",
    severity=Severity.WARNING,
    title="the adapter has a full copy of one matrix of a tied base",
    symptoms="Gibberish after the merge, in loaders that follow the flag; or a merged model larger than its base.",
    cause="modules_to_save holds a trained copy of the head or of the embedding. Merging stores it beside the other "
    "matrix. PEFT 0.21.2 then sets the flag to false; a merge that leaves it true gives a torn model.",
    detection="The adapter stores the whole embedding or head (or both, with different values), the base is tied, and "
    "ensure_weight_tying is not set.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("transformers#45127", "unsloth#1971"),
)
