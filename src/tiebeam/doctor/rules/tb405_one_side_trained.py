"""TB405: only one matrix of an untied base is trained for added tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_adapter import ExaminedAdapter
from tiebeam.doctor.examples import DIM, write_adapter
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(adapter: ExaminedAdapter) -> Iterator[Evidence]:
    embed, head = adapter.embed, adapter.head
    if adapter.base_is_tied or embed.touched == head.touched:
        return
    grown = any(part.rows is not None and part.rows > adapter.matrix.rows for part in (embed, head))
    if grown or embed.tokens != head.tokens:
        yield Evidence(f"only the {'embedding' if embed.touched else 'head'} is trained")


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("List both in modules_to_save, or name both in trainable_token_indices, and train again"),)


def example(directory: Path) -> Path:
    import numpy as np

    tokens = {"model.embed_tokens.token_adapter.trainable_tokens_delta": np.ones((2, DIM), np.float32)}
    return write_adapter(directory, tokens, tied=False, trainable_token_indices={"embed_tokens": [38, 39]})


RULE = Rule(
    code="TB405",
    severity=Severity.WARNING,
    title="only one matrix of an untied base is trained for added tokens",
    symptoms="The model never writes the new tokens.",
    cause="The adapter trains the embedding of new tokens but not the head, or the head but not the embedding.",
    detection="The base is untied and the adapter changes one matrix only: by trainable_token_indices, or with more "
    "rows than the base has.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("peft#1750",),
)
