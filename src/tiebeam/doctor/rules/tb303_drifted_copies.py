"""TB303: copies of the embedding in this checkpoint differ slightly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path

_MEGATRON_COPY = "word_embeddings_for_head.weight"


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    """Compare tensors with the embedding's name and shape: pipeline stages, encoder and decoder, MTP layers."""
    embed, head = model.pair.embed, model.pair.head
    if embed is None:
        return
    leaf = embed.name.split(".")[-2:]
    pair = {embed.name, head.name if head else None}
    for name, info in model.checkpoint.tensors.items():
        similar = name.split(".")[-2:] == leaf or name.endswith(_MEGATRON_COPY)
        if similar and name not in pair and info.shape == embed.shape and info.dtype == embed.dtype:
            from tiebeam.equality import compare

            result = compare(model.checkpoint, embed.name, name)
            if not result.equal and (result.difference is None or result.difference.median_cosine > 0.5):
                yield Evidence(f"{embed.name} and {name}: {result.how}")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Decide which copy is right and write it under all the names"),
        Step("In training, all-reduce the gradients of all copies together"),
    )


def example(directory: Path) -> Path:
    drifted = matrix(0) + 0.01 * matrix(2)
    tensors = {EMBED: matrix(0), HEAD: matrix(1), "model.layers.1.embed_tokens.weight": drifted}
    return write_llama(directory, tensors, tie_word_embeddings=False)


RULE = Rule(
    code="TB303",
    severity=Severity.WARNING,
    title="copies of the embedding in this checkpoint differ slightly",
    symptoms="The first and the last stage of a pipeline disagree about the vocabulary. The loss jumps after a "
    "conversion.",
    cause="Pipeline stages or extra prediction layers each hold a copy of the embedding. The copies drift without a "
    "common all-reduce and a common optimizer state.",
    detection="Other tensors with the embedding's last name, shape and dtype are compared with it: values differ, and "
    "the median cosine of the rows is above 0.5.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("pytorch#51931", "Megatron-LM#4642"),
)
