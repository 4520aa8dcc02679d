"""TB503: one weight is in the optimizer twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    expected = 1 if module.one_parameter or module.one_storage else 2
    if len(module.held_pair) > expected:
        yield Evidence(f"the tied matrix is in {', '.join(map(str, module.held_pair))}")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step(
            "Build the groups from model.parameters(), which lists a tied weight once",
            python="optimizer = torch.optim.AdamW(model.parameters())",
        ),
    )


def example(directory: Path) -> LiveExample:
    """Both modules are listed; torch only warns about the duplicate."""
    import torch

    model = live_model()
    return LiveExample(model, torch.optim.AdamW([model.embed_tokens.weight, model.lm_head.weight]))


RULE = Rule(
    code="TB503",
    severity=Severity.ERROR,
    title="one weight is in the optimizer twice",
    symptoms="The matrix is updated twice per step: twice the learning rate, or two weight decays.",
    cause="Both modules were listed when the groups were built by module instead of by parameter.",
    detection="The tied matrix (by identity or by storage) occurs more than once in the groups of the watched "
    "optimizers.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("pytorch#40967", "APOLLO#4"),
)
