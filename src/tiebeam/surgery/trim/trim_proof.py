"""What is proved about a trimmed model.

Rows: every kept row has the bytes that it had. Text of kept tokens: new ids are the old ones, one to one, and the
logits at the kept rows are equal to the bit (surgery/proof.py). Other text: it encodes, decodes to the same characters,
and has no unknown token where the old tokenizer had none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.write.copy_bytes import Span
from tiebeam.errors import ProofFailed
from tiebeam.surgery.extend.extend_proof import MORE_TEXT
from tiebeam.surgery.loss_effect import built_in_passage
from tiebeam.surgery.vocabulary_rows import VocabularyTable, row_windows
from tiebeam.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LINE = 400  # characters
_TEXT = 1 << 18  # characters of text, beside the text of each token
_RUN = 64  # tokens of text that the logits are compared on


@dataclass(frozen=True)
class TextProof:
    """How many tokens of kept-only text and how many pieces of other text were compared; `run` are ids to run."""

    same_tokens: int
    other_texts: int
    run: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"same_tokens": self.same_tokens, "other_texts": self.other_texts}


def prove_texts(
    before: Tokenizer, after: Tokenizer, kept: NDArray[np.int64], unknown: int | None, texts: Sequence[str]
) -> TextProof:
    """Encode lines of `texts`, and the text of every token, with both tokenizers; raises ProofFailed."""
    lines = [*_lines([*texts, built_in_passage(), MORE_TEXT]), *_token_texts(before)]
    place = {old: new for new, old in enumerate(kept.tolist())}
    same = 0
    run: list[int] = []
    others: list[tuple[str, list[int], list[int]]] = []
    for line, a, b in zip(lines, _encoded(before, lines), _encoded(after, lines), strict=True):
        expected = [place.get(i, -1) for i in a]
        if -1 in expected:
            others.append((line, a, b))
        elif expected != b:
            raise ProofFailed(f"{line[:60]!r} has kept tokens only but encodes to others; nothing was written")
        else:
            same += len(b)
            run += b if len(run) < _RUN else []
    shown = _decoded(before, [a for _, a, _ in others])
    for (line, a, b), expected_text, text in zip(others, shown, _decoded(after, [b for *_, b in others]), strict=True):
        if unknown is not None and unknown not in a and place.get(unknown) in b:
            raise ProofFailed(f"{line[:60]!r} has become an unknown token; nothing was written")
        if text != expected_text:
            raise ProofFailed(f"{line[:60]!r} decodes to {text[:60]!r}; nothing was written")
    return TextProof(same, len(others), tuple(run[:_RUN]))


def _lines(texts: Sequence[str]) -> Iterator[str]:
    """Lines from the start of each text, so that all of them count."""
    each = _TEXT // len(texts)
    for text in texts:
        for line in text[:each].splitlines():
            yield from (line[at : at + _LINE] for at in range(0, len(line), _LINE))


def _token_texts(tokenizer: Tokenizer) -> Iterator[str]:
    """The text of every token. A part of a character is shown as U+FFFD, which is a text like any other."""
    return filter(None, _decoded(tokenizer, [[i] for i in range(tokenizer.size)]))


def _encoded(tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.backend.encode_batch_fast(list(lines), add_special_tokens=False)]


def _decoded(tokenizer: Tokenizer, ids: Sequence[list[int]]) -> list[str]:
    """`tokenizer.decode` of each, in one call: for the tokens of a vocabulary, calls take longer than decoding."""
    return list(tokenizer.backend.decode_batch(list(ids), skip_special_tokens=False))


def differing_row(result: Checkpoint, tables: Sequence[VocabularyTable], kept: NDArray[np.int64]) -> str | None:
    """The first kept rows whose bytes differ from the source's; None if there are none.

    Rows that are converted on the way have no bytes to compare with; their logits are.
    """
    import numpy as np

    for table in tables:
        if not isinstance(table.entry.content, Span):
            continue
        per_row = table.entry.nbytes // table.rows
        ids = kept[kept < table.rows]  # further ids read row 0 of a per-layer table
        for first, window in row_windows(table.entry.content, per_row):
            begin, end = np.searchsorted(ids, [first, first + len(window)]).tolist()
            raw = result.read_bytes(table.name, begin * per_row, end * per_row)
            written = np.frombuffer(raw, np.uint8).reshape(-1, per_row)
            if not np.array_equal(window[ids[begin:end] - first], written):
                return f"rows {begin:,} to {end - 1:,} of {table.name} differ from the source's"
    return None
