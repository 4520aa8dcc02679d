"""TB508: two names share memory, and safetensors refuses to save them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    if module.stage == "save" and module.embed is module.head and not hasattr(module.model, "save_pretrained"):
        yield Evidence(f"two names of the state dict are one tensor of {tuple(module.embed.shape)}")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step(
            "Save one name (or remove the alias from the state dict)",
            python='safetensors.torch.save_model(model, "model.safetensors")',
        ),
    )


def example(directory: Path) -> LiveExample:
    return LiveExample(live_model(), stage="save")


RULE = Rule(
    code="TB508",
    severity=Severity.NOTE,
    title="two names share memory, and safetensors refuses to save them",
    symptoms="RuntimeError: Some tensors share memory.",
    cause="safetensors does not write one storage twice, and a plain module has no list of its ties.",
    detection="In the stage save, embedding and head are one parameter and the model has no save_pretrained.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("safetensors#493", "Megatron-Bridge#919"),
)
