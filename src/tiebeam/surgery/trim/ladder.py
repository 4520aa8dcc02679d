"""What each size of the vocabulary costs on held-out text: rows, parameters, bytes, tokens and bits per byte.

A smaller vocabulary splits text into more tokens, so that losses per token cannot be compared. Bits per byte can. The
model runs once for each size: on the tokens that the trimmed tokenizer makes, with only the kept rows of the head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import BadRequest, TiebeamError
from tiebeam.surgery.plan import Progress, no_progress
from tiebeam.surgery.proof import too_large_to_run
from tiebeam.surgery.trim.select_tokens import Chooser, Selection
from tiebeam.surgery.vocabulary_rows import VocabularyTable
from tiebeam.tokenizer import Tokenizer
from tiebeam.tokenizer.keep_tokens import keep_in_json, new_ids, tokenizer_of

if TYPE_CHECKING:
    from tiebeam.decode import Engine

MEASURED_TOKENS = 4096
_STEPS = 5


@dataclass(frozen=True, slots=True)
class Rung:
    """One size. `bits_per_byte` is None where the model was not run."""

    rows: int
    parameters: int
    parameters_saved: int
    bytes_saved: int
    coverage: float
    tokens_per_byte: float
    bits_per_byte: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Ladder:
    """Sizes, the largest first; the first is the model as it is. `why` says why bits per byte were not measured."""

    rungs: tuple[Rung, ...]
    measured_bytes: int
    held_out_bytes: int
    why: str = ""

    def of(self, rows: int) -> Rung | None:
        return next((rung for rung in self.rungs if rung.rows == rows), None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "rungs": [rung.to_dict() for rung in self.rungs],
            "measured_bytes": self.measured_bytes,
            "held_out_bytes": self.held_out_bytes,
            "why_not_measured": self.why,
        }


@dataclass(frozen=True)
class TrimmedTokenizer:
    """The tokenizer with the tokens of a selection, and its new ids as old ones."""

    tokenizer: Tokenizer
    kept: Mapping[int, int]
    """old id: new id."""

    @staticmethod
    def of(document: Mapping[str, Any], old: Tokenizer, selection: Selection) -> TrimmedTokenizer:
        kept = new_ids(selection.kept.tolist())
        start = None if old.start is None else tuple(kept[i] for i in old.start)
        return TrimmedTokenizer(tokenizer_of(keep_in_json(document, kept), start), kept)


def ladder_sizes(chooser: Chooser, chosen: Sequence[Selection], asked: Sequence[int] | None) -> list[Selection]:
    """Powers of two below the number of tokens, or the sizes asked for; and those chosen; the largest first."""
    tokens = len(set(chooser.pieces.ids.values()))
    fewest = len(chooser.always)
    if asked is None:
        top = 1 << max(0, (tokens - 1).bit_length() - 1)
        asked = [size for size in (top >> i for i in range(_STEPS)) if fewest <= size < tokens]
    elif wrong := [size for size in asked if size < fewest]:
        raise BadRequest(f"a ladder of {wrong[0]:,} rows is not possible: {fewest:,} tokens must stay")
    found = {selection.rows: selection for selection in (*(chooser.keep(size) for size in asked), *chosen)}
    return [found[rows] for rows in sorted(found, reverse=True)]


def measure_ladder(
    checkpoint: Checkpoint,
    document: Mapping[str, Any],
    old: Tokenizer,
    selections: Sequence[Selection],
    held_out: Sequence[str],
    *,
    tables: Sequence[VocabularyTable],
    parameters: int,
    tokens: int = MEASURED_TOKENS,
    progress: Progress | None = None,
    engine: str = "auto",
    device: str | None = None,
) -> Ladder:
    """Measure each selection, and the model as it is, on the same held-out text."""
    show = progress or no_progress
    text = measured_text(old, held_out, tokens)
    running, why = _engine(checkpoint, engine, device, show) if tokens else (None, "it was not asked for")
    total, done = (len(selections) + 1) * len(old.encode(text)), 0

    def ran(count: int) -> None:
        nonlocal done
        done += count
        show("measuring bits per byte", min(done, total - 1), total)

    table_rows = max(table.rows for table in tables)
    rungs = []
    for selection in (None, *selections):
        trimmed = None if selection is None else TrimmedTokenizer.of(document, old, selection)
        tokenizer = old if trimmed is None else trimmed.tokenizer
        bits = None
        if running is not None:
            try:
                bits = _bits_per_byte(running, tokenizer, text, selection, ran)
            except TiebeamError as error:
                running, why = None, str(error)
        rows = table_rows if selection is None else selection.rows
        saved = saved_by(tables, rows)
        coverage = 1.0 if selection is None else selection.coverage
        per_byte = tokens_per_byte(tokenizer, held_out)
        rungs.append(Rung(rows, parameters - saved[0], saved[0], saved[1], coverage, per_byte, bits))
    show("measuring bits per byte", total, total)
    measured = len(text.encode()) if running is not None else 0
    return Ladder(tuple(rungs), measured, sum(len(chunk.encode()) for chunk in held_out), why)


def saved_by(tables: Iterable[VocabularyTable], rows: int) -> tuple[int, int]:
    """(parameters, bytes) that tables of `rows` rows have less. A buffer (final_logits_bias) has no parameters."""
    parameters = nbytes = 0
    for table in tables:
        dropped = table.rows - rows
        if not table.name.endswith("final_logits_bias"):
            parameters += dropped * math.prod(table.width)
        nbytes += dropped * (table.entry.nbytes // table.rows)
    return parameters, nbytes


def measured_text(tokenizer: Tokenizer, held_out: Sequence[str], tokens: int) -> str:
    """The first part of each held-out chunk, so that all of them count; together about `tokens` tokens."""
    each = max(1, tokens // len(held_out))
    parts = []
    for chunk in held_out:
        encoding = tokenizer.backend.encode(chunk, add_special_tokens=False)
        end = encoding.offsets[min(each, len(encoding.offsets)) - 1][1] if encoding.offsets else 0
        parts.append(chunk[:end])
    return "\n".join(parts)


def tokens_per_byte(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    encoded = tokenizer.backend.encode_batch_fast(list(texts), add_special_tokens=False)
    return sum(len(encoding.ids) for encoding in encoded) / sum(len(text.encode()) for text in texts)


def _engine(checkpoint: Checkpoint, engine: str, device: str | None, show: Progress) -> tuple[Engine | None, str]:
    from tiebeam.decode import open_engine

    why = too_large_to_run(checkpoint)
    if why:
        return None, why
    show("opening the model", 0, 1)
    try:
        return open_engine(checkpoint, engine=engine, device=device), ""
    except TiebeamError as error:
        return None, str(error)
    finally:
        show("opening the model", 1, 1)


def _bits_per_byte(engine: Engine, tokenizer: Tokenizer, text: str, selection: Selection | None, ran: Any) -> float:
    import numpy as np

    from tiebeam.decode.perplexity import nats_among_rows

    rows = np.arange(engine.vocab) if selection is None else selection.kept
    ids, first = tokenizer.encode_with_bytes(text)
    return nats_among_rows(engine, rows[ids], rows, ran) / math.log(2) / (len(text.encode()) - first)
