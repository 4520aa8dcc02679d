"""TB702: added tokens have no rows: the table has the size of the base model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, VOCAB, matrix, write_llama, write_vocab
from tiebeam.doctor.extend_advice import can_extend, extend_steps
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.doctor.rules.tb701_ids_beyond_rows import ids_beyond, only_added

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    vocabulary = model.report.vocabulary
    beyond = ids_beyond(vocabulary)
    if beyond and not model.is_gguf and only_added(vocabulary):
        tokens = vocabulary.tokens
        texts = [text for i in beyond[:5] if tokens and (text := tokens.text(i)) is not None]
        shown = ", ".join(texts) + (", ..." if len(beyond) > len(texts) else "")
        told = f"{vocabulary}: {len(beyond):,} added tokens have no row ({shown})"
        yield Evidence(told, rows=beyond.stop, extend=can_extend(model))


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step(
            "If an adapter was merged, merge it again with `tiebeam merge`, which grows the base to the adapter's "
            "vocabulary; with PEFT, resize the base first",
            python=f"model.resize_token_embeddings({at.rows})",
        ),
        *extend_steps(at, "If the tokens were never trained, give them rows to train", f"--rows {at.rows}"),
        Step("Or remove them: copy the base's tokenizer files beside the weights"),
    )


def example(directory: Path) -> Path:
    write_llama(directory, {EMBED: matrix(0)}, tie_word_embeddings=True)
    return write_vocab(directory, VOCAB, added=3)


RULE = Rule(
    code="TB702",
    severity=Severity.ERROR,
    title="added tokens have no rows: the table has the size of the base model",
    symptoms="The adapter works, the merged model does not: garbage or an index error for the added tokens.",
    cause="The merge wrote the base's table and the adapter's tokenizer. The trained rows of the new tokens were left "
    "out.",
    detection="All tokenizer ids at or above the rows of the embedding are added tokens, and vocab_size is the number "
    "of rows.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("unsloth#3416", "unsloth#3444", "unsloth#3730"),
)
