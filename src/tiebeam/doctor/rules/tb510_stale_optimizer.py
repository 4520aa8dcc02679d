"""TB510: the optimizer holds a matrix that is no longer in the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    pair = {id(held.parameter) for held in module.held_pair}
    strangers = [held for held in module.held if id(held.parameter) not in pair]
    known = {id(p) for p in module.model.parameters()} if strangers else set()
    for held in strangers:
        if id(held.parameter) not in known and held.parameter.shape == module.embed.shape:
            shape = tuple(held.parameter.shape)
            yield Evidence(f"{held.optimizer} group {held.group} holds a {shape} that the model does not have")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Build the optimizer after that stage", python="optimizer = torch.optim.AdamW(model.parameters())"),
        Step("If you are about to tie or untie, pass the optimizer, as in tiebeam.tie_(model, optimizer)"),
    )


def example(directory: Path) -> LiveExample:
    import torch

    model = live_model()
    optimizer = torch.optim.AdamW(model.parameters())
    model.embed_tokens.weight = torch.nn.Parameter(model.embed_tokens.weight.detach().clone())
    model.lm_head.weight = model.embed_tokens.weight
    return LiveExample(model, optimizer)


RULE = Rule(
    code="TB510",
    severity=Severity.ERROR,
    title="the optimizer holds a matrix that is no longer in the model",
    symptoms="The embedding never changes although the loss decreases.",
    cause="The optimizer was built before a stage that replaced the parameter (tie, untie, resize, to_empty).",
    detection="A watched optimizer holds a parameter with the embedding's shape that model.parameters() does not list.",
    check=check,
    steps=steps,
    example=example,
)
