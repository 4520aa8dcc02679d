"""TB205: neither the embedding nor the head is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.pair import Tie

if TYPE_CHECKING:
    from pathlib import Path

_HAS_HEAD = ("LM", "ConditionalGeneration")


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    classes = (model.checkpoint.config or {}).get("architectures")
    expected = isinstance(classes, list) and any(part in str(name) for name in classes for part in _HAS_HEAD)
    if expected and model.tie is Tie.NONE and not model.pair.encoder and model.pair.embed is None:
        others = len(model.checkpoint.tensors)
        yield Evidence(f"{model.report.architecture} has an embedding; the files hold {others:,} other tensors")


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Find the file that holds the embedding and put it beside the others"),)


def example(directory: Path) -> Path:
    return write_llama(directory, {}, tie_word_embeddings=True)


RULE = Rule(
    code="TB205",
    severity=Severity.ERROR,
    title="neither the embedding nor the head is stored",
    symptoms="The model loads with a warning and writes noise: a loader initializes both at random.",
    cause="The embedding was left out when the file was written: an adapter or the layers were saved alone, or a "
    "shard is missing from a set without an index.",
    detection="The class in config.json has a head, and no tensor of the files is an embedding or a head.",
    check=check,
    steps=steps,
    example=example,
)
