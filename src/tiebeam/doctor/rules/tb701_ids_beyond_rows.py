"""TB701: the tokenizer has ids that the embedding has no row for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, VOCAB, matrix, write_llama, write_vocab
from tiebeam.doctor.extend_advice import can_extend, extend_steps
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.inspection.vocabulary import Vocabulary

if TYPE_CHECKING:
    from pathlib import Path


def ids_beyond(vocabulary: Vocabulary) -> range:
    """The ids from the first without a row to the highest; empty if every id has one."""
    ids, rows = vocabulary.tokenizer_ids, vocabulary.embed_rows
    if ids is None or rows is None:
        return range(0)
    return range(rows + vocabulary.extra_rows, ids)


def only_added(vocabulary: Vocabulary) -> bool:
    """Whether all ids without a row are added tokens, beside a table that agrees with vocab_size."""
    beyond, tokens = ids_beyond(vocabulary), vocabulary.tokens
    if tokens is None or vocabulary.vocab_size not in (None, vocabulary.embed_rows):
        return False
    return all(i in tokens.added for i in tokens.from_id(beyond.start))


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    vocabulary = model.report.vocabulary
    beyond = ids_beyond(vocabulary)
    if model.is_gguf and vocabulary.tokenizer_ids and vocabulary.rows and vocabulary.padding:
        told = f"{vocabulary}; llama.cpp needs one row per token and refuses the file"
        yield Evidence(told, rows=vocabulary.rows, extend=can_extend(model))
    elif beyond and (model.is_gguf or not only_added(vocabulary)):
        told = f"{vocabulary}: the ids from {beyond.start:,} to {beyond[-1]:,} have no row"
        yield Evidence(told, rows=beyond.stop, extend=can_extend(model))


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Check that tokenizer and weights belong to one model, and copy the right tokenizer beside the weights"),
        *extend_steps(at, "If the tokenizer is right, give its tokens rows, and train them", f"--rows {at.rows}"),
    )


def example(directory: Path) -> Path:
    write_llama(directory, {EMBED: matrix(0)}, tie_word_embeddings=True)
    return write_vocab(directory, VOCAB + 5)


RULE = Rule(
    code="TB701",
    severity=Severity.ERROR,
    title="the tokenizer has ids that the embedding has no row for",
    symptoms="IndexError: index out of range in self, or a CUDA device-side assert, at the first text with such a "
    'token. llama.cpp refuses the model: "token_embd.weight has wrong shape".',
    cause="The tokenizer of another model was copied beside the weights, or the vocabulary was trained anew without "
    "resizing the table.",
    detection="The highest id of the tokenizer (tokenizer.json, added_tokens.json, tokenizer_config.json, vocab.json) "
    "is not below the rows of the embedding, and not only added tokens are beyond it (TB702). In a GGUF, the list of "
    "tokens and the rows differ.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("llama.cpp#5910", "llama.cpp#8445", "LlamaFactory#8611"),
)
