"""TB514: the saved checkpoint is not the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    if module.saved:
        yield Evidence(f"{module.saved}{module.after}")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Set config.tie_word_embeddings to what the model is, save again, and run tiebeam doctor on the files"),
    )


def example(directory: Path) -> LiveExample:
    """Tied in memory, declared untied, one matrix saved: the next load makes a random head."""
    from tiebeam.doctor.examples import EMBED, write_llama

    model = live_model()
    model.config.tie_word_embeddings = False
    saved = write_llama(
        directory / "saved", {EMBED: model.embed_tokens.weight.detach().numpy()}, tie_word_embeddings=False
    )
    return LiveExample(model, tied=True, stage="save", saved=saved)


RULE = Rule(
    code="TB514",
    severity=Severity.ERROR,
    title="the saved checkpoint is not the model",
    symptoms="The run was fine, and the model that is loaded from its checkpoint is not.",
    cause="The config declares another tie than the model has, one of two matrices was not saved, or the values were "
    "gathered from the wrong place (an empty ZeRO-3 partition, a stale copy).",
    detection="The pair of the written files, opened like any checkpoint, has another tie, shape or other values than "
    "the model in memory.",
    check=check,
    steps=steps,
    example=example,
)
