"""TB506: freezing the embedding has frozen the head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    frozen = module.tied and module.one_parameter and not module.embed.requires_grad
    if frozen and any(p.requires_grad for p in module.model.parameters()):
        yield Evidence("the tied matrix does not require gradients, other parameters do")


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("If only one of the two should be frozen, untie first", python="tiebeam.untie_(model)"),)


def example(directory: Path) -> LiveExample:
    model = live_model()
    model.embed_tokens.weight.requires_grad_(False)
    return LiveExample(model)


RULE = Rule(
    code="TB506",
    severity=Severity.WARNING,
    title="freezing the embedding has frozen the head",
    symptoms="The head does not learn.",
    cause="A tied pair is one parameter: requires_grad=False on the embedding is requires_grad=False on the head.",
    detection="The tied parameter does not require gradients, and some other parameter does.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("transformers#31467",),
)
