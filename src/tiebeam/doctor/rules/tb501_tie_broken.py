"""TB501: the tie is broken: two parameters where there should be one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    if module.one_parameter or not module.tied or module.one_storage or module.both_sharded:
        return
    assert module.head is not None
    where = ", on the meta device" if module.embed.is_meta or module.head.is_meta else ""
    yield Evidence(f"embedding and head are two parameters{module.after}{where}")


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Tie again after that stage (or call model.tie_weights())", python="tiebeam.tie_(model)"),)


def example(directory: Path) -> LiveExample:
    """load_state_dict(assign=True) makes a parameter per name."""
    model = live_model()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    return LiveExample(model, tied=True, stage="resume")


RULE = Rule(
    code="TB501",
    severity=Severity.ERROR,
    title="the tie is broken: two parameters where there should be one",
    symptoms="The loss jumps on resume. The two copies diverge in training while the checkpoint keeps only one.",
    cause="A stage replaced one of the two: to_empty() after the meta device, init_empty_weights, "
    "load_state_dict(assign=True), dispatch over devices, a wrapper that copies.",
    detection="The model should be tied (by its config or as it was), and embedding and head are two Parameter objects "
    "with two storages.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("Automodel#2571", "verl#7834", "accelerate#3668", "pytorch#188346", "accelerate#993"),
)
