"""TB707: rows were never trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, matrix, write_llama, write_vocab
from tiebeam.doctor.extend_advice import can_repair, extend_steps
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path

_UNTRAINED = ("zero", "identical", "untouched", "mean", "padding")


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    for part in model.rows.matrices if model.rows else ():
        count, matter = part.count(*_UNTRAINED), part.count(*_UNTRAINED, producible=True)
        if not count or (not model.all_rows and not 0 < matter <= part.rows // 2):
            continue  # without --rows: a model that was not trained at all is no finding, nor are rows without a token
        kinds = ", ".join(f"{part.count(kind):,} {kind}" for kind in _UNTRAINED if part.count(kind))
        known = model.report.vocabulary.tokens is not None
        said = f"the tokenizer can produce {matter:,} of them" if known else "there is no tokenizer to ask"
        severity = Severity.NOTE if known and not matter else None
        told = f"{part.name}: {count:,} of {part.rows:,} rows ({kinds}); {said}"
        yield Evidence(told, severity, extend=can_repair(model))


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Train these tokens, or do not use them: a prompt template with an untrained token gives noise"),
        *extend_steps(at, "Before training them, start them from the mean of the trained rows", "--repair"),
        Step("List the rows with their tokens", f"tiebeam doctor {at.model} --rows"),
    )


def example(directory: Path) -> Path:
    values = matrix(0)
    values[-4:] = 0
    write_llama(directory, {EMBED: values}, tie_word_embeddings=True)
    return write_vocab(directory, len(values))


RULE = Rule(
    code="TB707",
    severity=Severity.WARNING,
    title="rows were never trained",
    symptoms="Some tokens give noise, NaN gradients at the first fine-tuning step, or an unexpected continuation.",
    cause="The tokenizer was trained on other text than the model, special tokens were reserved for later, or tokens "
    "were added and never trained.",
    detection="Rows that are zero, identical to others, like a fresh normal draw of initializer_range, at the mean "
    "row, or of the padding's norm. Without `--rows`: local float types only, and only rows that the tokenizer "
    "can produce. With it: all of them, a note if the tokenizer cannot produce any.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("unsloth#658", "unsloth#1258", "axolotl#1944", "LlamaFactory#10547"),
)
