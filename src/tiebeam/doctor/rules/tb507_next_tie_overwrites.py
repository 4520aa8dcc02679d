"""TB507: the config is tied, the values differ: the next tie overwrites the head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    if not module.one_parameter and not module.tied and module.flag:
        yield Evidence("config.tie_word_embeddings is true, embedding and head are two parameters")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step(
            "Before resize_token_embeddings(), tie_weights() or save_pretrained()",
            python="model.config.tie_word_embeddings = False",
        ),
    )


def example(directory: Path) -> LiveExample:
    model = live_model(tied=False)
    model.config.tie_word_embeddings = True
    return LiveExample(model, tied=False)


RULE = Rule(
    code="TB507",
    severity=Severity.WARNING,
    title="the config is tied, the values differ: the next tie overwrites the head",
    symptoms="A resize replaces a trained head by the embedding without a warning.",
    cause="The checkpoint was declared tied with two different matrices (TB101). transformers 5 kept both and left "
    "config.tie_word_embeddings true.",
    detection="The guard was told that the model is untied, its two matrices are two parameters, and the flag of its "
    "config is true.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("transformers#42612",),
)
