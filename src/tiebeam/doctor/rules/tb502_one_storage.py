"""TB502: one storage under two Parameter objects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    if module.tied and module.one_storage:
        yield Evidence(f"two Parameter objects share {module.embed.numel():,} values{module.after}")


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Make it one Parameter (or assign head.weight = embed.weight)", python="tiebeam.tie_(model)"),)


def example(directory: Path) -> LiveExample:
    model = live_model(tied=False)
    model.lm_head.weight.data = model.embed_tokens.weight.data
    return LiveExample(model)


RULE = Rule(
    code="TB502",
    severity=Severity.ERROR,
    title="one storage under two Parameter objects",
    symptoms="The matrix is updated twice per step, by two different amounts. No library reports it.",
    cause="The pair was tied by assigning .data, or the weight was wrapped in a new Parameter. The values are shared; "
    "the gradients and the optimizer state are not.",
    detection="Embedding and head are two Parameter objects whose data starts at the same address.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("pytorch#40967", "APOLLO#4"),
)
