"""TB513: rows of the embedding or the head became zero."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    for role, change in module.changes.items():
        if change.zeroed:
            yield Evidence(f"{change.zeroed} of {change.compared} sampled rows of the {role} are zero{module.after}")
    for role, parameter in (("embedding", module.embed), ("head", None if module.one_parameter else module.head)):
        if parameter is not None and parameter.numel() == 0 and not hasattr(parameter, "ds_shape"):
            yield Evidence(f"the {role} has no values: its shape is {list(parameter.shape)}{module.after}")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step(
            "Under DeepSpeed ZeRO-3 a parameter is empty outside of its layer: resize and copy inside "
            "deepspeed.zero.GatheredParameters(..., modifier_rank=0), or before deepspeed.initialize"
        ),
    )


def example(directory: Path) -> LiveExample:
    """New rows that were made and never filled."""
    import torch

    model = live_model()

    def resize() -> None:
        grown = torch.cat([model.embed_tokens.weight.detach(), torch.zeros(8, 16)])
        model.embed_tokens.weight = model.lm_head.weight = torch.nn.Parameter(grown)

    return LiveExample(model, stage="resize", change=resize)


RULE = Rule(
    code="TB513",
    severity=Severity.ERROR,
    title="rows of the embedding or the head became zero",
    symptoms="Some tokens, or all, get the same logit, and the loss of the step after a resize jumps.",
    cause="The rows were written while the parameter was partitioned, or allocated and never filled: a resize under "
    "DeepSpeed ZeRO-3, a state dict of empty placeholders.",
    detection="Sampled rows that had values, or that the stage added, are zero after it; or the parameter has no "
    "values and is not a ZeRO-3 partition.",
    check=check,
    steps=steps,
    example=example,
)
