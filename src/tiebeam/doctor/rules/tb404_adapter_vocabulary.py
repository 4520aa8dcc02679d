"""TB404: the adapter was trained with another vocabulary than its base has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_adapter import ExaminedAdapter
from tiebeam.doctor.examples import EMBED, VOCAB, matrix, write_adapter
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step, merge_steps


def check(adapter: ExaminedAdapter) -> Iterator[Evidence]:
    for part, name in ((adapter.embed, "embedding"), (adapter.head, "head")):
        rows = adapter.matrix.rows
        if part.rows is not None and part.rows != rows:
            text = f"the adapter's {name} has {part.rows:,} rows, the base has {rows:,}"
            yield Evidence(text, rows=part.rows)


def steps(at: Names) -> tuple[Step, ...]:
    return (
        *merge_steps(at, "Merge it with tiebeam, which grows the base to the adapter's vocabulary first"),
        Step(
            "With PEFT, resize the base to the adapter's vocabulary before you load the adapter",
            python=f"model.resize_token_embeddings({at.rows})",
        ),
    )


def example(directory: Path) -> Path:
    return write_adapter(directory, {EMBED: matrix(0, VOCAB + 4)}, tied=False, modules_to_save=["embed_tokens"])


RULE = Rule(
    code="TB404",
    severity=Severity.ERROR,
    title="the adapter was trained with another vocabulary than its base has",
    symptoms="size mismatch for embed_tokens when the adapter is loaded.",
    cause="Tokens were added before training. The adapter's copy of a matrix has more rows than the base.",
    detection="The row count of the adapter's embedding or head (a full copy, or LoRA factors) is not that of the "
    "base.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("LlamaFactory#6749",),
)
