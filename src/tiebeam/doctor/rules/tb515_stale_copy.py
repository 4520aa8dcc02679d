"""TB515: of two copies of the model, only one got the update."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    for role, change in module.copy_changes.items():
        if change.changed:
            yield Evidence(
                f"{change.changed} of {change.compared} sampled rows of the copy's {role} differ from the "
                f"model's{module.after}"
            )


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step(
            "Send the tied matrix under both names, or tie the copy to what it received",
            python='tiebeam.tie_(copy, keep="embed")',
        ),
    )


def example(directory: Path) -> LiveExample:
    """The copy keeps a head of its own, and the update brings the embedding only."""
    import copy

    import torch

    model = live_model()
    twin = live_model(tied=False)
    twin.load_state_dict(copy.deepcopy(model.state_dict()))
    with torch.no_grad():
        model.embed_tokens.weight.add_(0.1)
        twin.embed_tokens.weight.copy_(model.embed_tokens.weight)
    return LiveExample(model, stage="weight sync", twin=twin)


RULE = Rule(
    code="TB515",
    severity=Severity.ERROR,
    title="of two copies of the model, only one got the update",
    symptoms="In reinforcement learning the samples come from an old head: rewards stall and the ratio of the new to "
    "the old policy is not 1 right after an update.",
    cause="The trainer sends each parameter once, under the name of the embedding. A copy that holds a head of its own "
    "(an untied inference engine, a reference model) keeps the old one.",
    detection="Sampled rows of embedding and head differ between the model and its copy.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("verl#7834",),
)
