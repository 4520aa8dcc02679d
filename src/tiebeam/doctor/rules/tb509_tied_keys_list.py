"""TB509: _tied_weights_keys is a list, and this transformers needs a mapping."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule, transformers_major
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    keys = getattr(type(module.model), "_tied_weights_keys", None)
    if isinstance(keys, list) and transformers_major() >= 5:
        yield Evidence(f"{type(module.model).__name__}._tied_weights_keys = {keys}")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step(
            "Set a mapping on the class (or load with transformers 4)",
            python='type(model)._tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}',
        ),
    )


def example(directory: Path) -> LiveExample:
    import transformers  # noqa: F401 (the rule reads its version)

    model = live_model()
    type(model)._tied_weights_keys = ["lm_head.weight"]
    return LiveExample(model)


RULE = Rule(
    code="TB509",
    severity=Severity.ERROR,
    title="_tied_weights_keys is a list, and this transformers needs a mapping",
    symptoms="AttributeError: 'list' object has no attribute 'keys'.",
    cause="The model's code was written for transformers 4.",
    detection="transformers 5 or later is imported, and the attribute of the model's class is a list.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("transformers#44861",),
)
