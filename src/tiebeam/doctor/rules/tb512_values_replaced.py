"""TB512: a stage that must keep the values of the embedding or the head replaced them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    for role, change in module.changes.items():
        if change.changed > change.zeroed:
            yield Evidence(f"{change.changed} of {change.compared} sampled rows of the {role} changed{module.after}")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Load the weights again after that stage, or grow the model with tiebeam.extend_, which keeps every row"),
    )


def example(directory: Path) -> LiveExample:
    """The head is built again, larger, instead of being grown."""
    from torch import nn

    model = live_model(tied=False)

    def resize() -> None:
        model.lm_head = nn.Linear(16, 304, bias=False)

    return LiveExample(model, stage="resize", change=resize)


RULE = Rule(
    code="TB512",
    severity=Severity.ERROR,
    title="a stage replaced the values of the embedding or the head",
    symptoms="The loss starts near log(vocabulary) after a resize or after preparing the model, as if it were new.",
    cause="The matrix was built again and initialized at random instead of being copied: a resize that makes a new "
    "head, to_empty(), weights that were loaded before the model was replaced.",
    detection="Sampled rows of the matrix before and after the stage differ by more than a cast to half precision. "
    "Stages that load other weights (load, resume) are not compared.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("transformers#42612",),
)
