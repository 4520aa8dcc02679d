"""TB505: a tied embedding is initialized at N(0, 1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

_SCALED = frozenset({"t5", "mt5", "umt5"})  # their logits are scaled by d**-0.5, so unit rows are right


def check(module: ExaminedModule) -> Iterator[Evidence]:
    model_type = getattr(module.config, "model_type", None)
    if module.tied and module.one_parameter and module.unit_normal and model_type not in _SCALED:
        yield Evidence(f"the tied matrix is N(0, 1) at width {module.embed.shape[1]:,}")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step(
            "Initialize the tied matrix with a standard deviation sigma such that d * sigma is at most about 2.5",
            python="torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.02)",
        ),
    )


def example(directory: Path) -> LiveExample:
    return LiveExample(live_model(std=1.0))


RULE = Rule(
    code="TB505",
    severity=Severity.WARNING,
    title="a tied embedding is initialized at N(0, 1)",
    symptoms="A loss of several hundred at step 0.",
    cause="nn.Embedding starts at N(0, 1). As the head, that gives the first logits a standard deviation of sqrt(d).",
    detection="When the guard is made, a sample of the tied matrix has mean 0 and standard deviation 1.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("xlstm#83",),
)
