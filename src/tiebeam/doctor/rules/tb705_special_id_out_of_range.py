"""TB705: a special token id is beyond the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, VOCAB, matrix, write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.inspection.vocabulary import SpecialId, special_ids

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    vocabulary = model.report.vocabulary
    rows = max(vocabulary.embed_rows or 0, vocabulary.vocab_size or 0, vocabulary.tokenizer_ids or 0)
    if vocabulary.embed_rows is None or model.report.guessed or model.report.draft:
        return
    beyond = [one for one in special_ids(model.checkpoint) if one.token >= rows + vocabulary.extra_rows]
    if beyond:
        more = f" and {len(beyond) - 5} more" if len(beyond) > 5 else ""
        severity = Severity.NOTE if all(map(_is_left_over, beyond)) else None
        yield Evidence(f"{'; '.join(map(str, beyond[:5]))}{more}; the highest id is {rows - 1:,}", severity)


def _is_left_over(special: SpecialId) -> bool:
    """bos and eos in config.json: often defaults of the class beside a small vocabulary. Only generate() reads them."""
    return special.file == "config.json" and special.key.endswith(("bos_token_id", "eos_token_id"))


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Set the ids to those of this model's tokenizer, or to null, in the files that are named"),)


def example(directory: Path) -> Path:
    return write_llama(directory, {EMBED: matrix(0)}, tie_word_embeddings=True, pad_token_id=VOCAB)


RULE = Rule(
    code="TB705",
    severity=Severity.ERROR,
    title="a special token id is beyond the vocabulary",
    symptoms="AssertionError: Padding_idx must be within num_embeddings on load, an index error at the first token, or "
    "a text that never stops.",
    cause="A special token was added to the tokenizer and the table was not resized, or the config of another model "
    "was copied.",
    detection="bos, eos, pad, decoder_start, forced and suppressed ids of config.json and generation_config.json "
    "are compared with the rows, vocab_size and the tokenizer's ids; negative ids count as none. "
    "A note if only bos or eos of config.json is: often a default that nothing reads.",
    check=check,
    steps=steps,
    example=example,
)
