"""Keep, reorder, drop, replace and add rows of every tensor that has the vocabulary as a dimension, all together.

The rows of the result are one list, `order`, for all tensors: a number from 0 on is that row of the source, and -1, -2,
... are the first, second, ... of the new rows, whose values are given for each tensor.

    tables = vocabulary_tables(source)
    new = {table.name: np.zeros((2, *table.width), np.float32) for table in tables}
    edit = plan_rows(source, [*range(32000), -1, -2], new)     # two rows more
    edit = plan_rows(source, kept_ids, {})                     # fewer

`edit` also sets vocab_size at every config level (in a GGUF, in its metadata). The tokenizer is not changed here.
Kept rows are copied as bytes. New values are rounded once, to the type that the tensor is stored in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import dtypes
from tiebeam.checkpoint.write.copy_bytes import Content, Joined, Made, Span
from tiebeam.checkpoint.write.safetensors import Entry
from tiebeam.errors import BadRequest
from tiebeam.families.config_levels import config_levels
from tiebeam.inspection import is_joint
from tiebeam.inspection.vocabulary import declared_size, size_paths
from tiebeam.inspection.vocabulary_tensors import (
    BIAS,
    EMBEDDING,
    FURTHER,
    HEAD,
    MTP,
    NGRAM,
    PER_LAYER,
    SCORE,
    VocabularyTensor,
)
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.packed_parts import packed_by
from tiebeam.surgery.source import Source

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PER_LAYER_SIZE = "vocab_size_per_layer_input"
_SPANS = 4096  # more runs of rows than this are copied through memory, not as spans of the file
_WINDOW = 4 << 20  # bytes of a table in memory at a time
_PASSES = 16  # at most so many times through a table
_INPUT = re.compile(r"emb|wte|shared")


@dataclass(frozen=True, slots=True)
class VocabularyTable:
    """A tensor with the vocabulary as a dimension.

    name     in the files of the target
    stored   in the source
    role     "embed" (looked up), "head" (scores tokens), "bias" (one number per token) or "per-layer" (looked up)
    rows     one per token; a per-layer table can have fewer than the embedding
    """

    name: str
    stored: str
    role: str
    rows: int
    entry: Entry

    @property
    def width(self) -> tuple[int, ...]:
        """The shape of one row; () for a bias."""
        return () if self.role == "bias" else self.entry.shape[1:]


def vocabulary_tables(source: Source, converting: bool = False) -> tuple[VocabularyTable, ...]:
    """Every tensor whose rows are tokens, the embedding first. Refuses a layout in which rows cannot be changed.

    `converting`: the rows of a GGUF may also be changed while it is converted to a Hugging Face directory.
    """
    report, rows = source.report, source.report.vocabulary.rows
    model = source.checkpoint.source
    if rows is None:
        raise BadRequest(f"{model} has no embedding and no head whose rows could be changed")
    if report.draft:
        raise BadRequest(f"{model} is a draft model, which scores the tokens of its target; change the target")
    if is_joint(source.checkpoint):
        raise BadRequest(f"{model} has a joint tie (one table and two maps); change its rows before joint=True")
    from_gguf = source.converted and source.checkpoint.format == "gguf"
    if from_gguf and not converting:
        raise BadRequest(
            f"the rows of a GGUF are changed in a GGUF: name a target that ends in .gguf, or convert {model} to a "
            "directory first (tiebeam tie, or tiebeam untie)"
        )
    if report.vocabulary.extra_rows:
        raise BadRequest(f"{model} keeps added tokens in a second table (additional_vocab_size), which is not changed")
    entries = {entry.name: entry for shard in source.layout.shards for entry in shard.entries}
    found = []
    for tensor in report.vocabulary_tensors:
        role = _role(tensor)
        if role is None:
            continue
        method = packed_by(tensor.name, source.dtypes)
        if method is not None or len(tensor.shape) > 2:
            raise BadRequest(
                f"{tensor.name} is packed ({method or tensor.kind}); change the rows before the model is quantized"
            )
        name = {EMBEDDING: source.embed, HEAD: source.head}.get(tensor.kind) if from_gguf else tensor.name
        if name is None:
            raise BadRequest(f"{tensor.name} is not converted; name a target that ends in .gguf")
        table = VocabularyTable(name, tensor.name, role, tensor.shape[-1 if role == "bias" else 0], entries[name])
        if table.rows != rows and role != "per-layer":
            raise BadRequest(
                f"{tensor.name} has {table.rows:,} rows and the embedding has {rows:,}; rows can be changed only where "
                "the two agree"
            )
        found.append(table)
    return tuple(found)


def _role(tensor: VocabularyTensor) -> str | None:
    """None: its rows are not tokens. The rows of an n-gram table are hashes, those of a score head are labels."""
    if tensor.kind in (EMBEDDING, HEAD):
        return "embed" if tensor.kind == EMBEDDING else "head"
    if tensor.kind in (BIAS, PER_LAYER):
        return "bias" if tensor.kind == BIAS else "per-layer"
    if tensor.kind in (MTP, FURTHER):
        return "embed" if _INPUT.search(tensor.name) else "head"
    return None if tensor.kind in (NGRAM, SCORE) or "scales" in tensor.kind else "head"


def plan_rows(
    source: Source,
    order: Sequence[int] | NDArray[np.int64],
    new: Mapping[str, NDArray[np.floating[Any]]],
    tables: Sequence[VocabularyTable] | None = None,
) -> Edit:
    """The edit that gives every vocabulary tensor the rows `order`.

    order    for each row of the result: a row of the source, or -1 - k for new row k
    new      name of a table: the values of its new rows [K, ...width]; needed for every table if there are any
    tables   those of `vocabulary_tables(source)`, if they are known
    """
    import numpy as np

    rows = np.asarray(order, np.int64)
    count, fresh = source.report.vocabulary.rows or 0, int(max(0, -rows.min(initial=0)))
    assert len(rows), "a vocabulary has rows"
    assert rows.max() < count, "the source has no such row"
    size = len(rows)
    _refuse_offsets(source, size)
    tables = vocabulary_tables(source) if tables is None else tables
    rewrite: dict[str, Entry] = {}
    config: dict[tuple[str, ...], Any] = {}
    for table in tables:
        ids = rows
        if table.rows < count:
            # Ids beyond a per-layer table read its row 0 (Gemma 3n), so that row is what they keep.
            ids = np.where(rows >= table.rows, 0, rows)
        if np.array_equal(ids, np.arange(table.rows)):
            continue
        values = np.asarray(new[table.name], np.float32) if fresh else np.zeros((0, *table.width), np.float32)
        assert values.shape == (fresh, *table.width), (table.name, values.shape)
        rewrite[table.name] = _entry(table, ids, values)
        if table.role == "per-layer":
            config |= _per_layer_sizes(source, size)
    declared: dict[tuple[str, ...], Any] = {}
    gguf: dict[str, Any] = {}
    if size != count:
        declared, gguf = _declared(source, size)
    return Edit(rewrite=rewrite, config={**config, **declared}, gguf=gguf)


def _entry(table: VocabularyTable, ids: NDArray[np.int64], values: NDArray[np.float32]) -> Entry:
    old, size = table.entry, len(ids)
    shape = (*old.shape[:-1], size) if table.role == "bias" else (size, *old.shape[1:])
    raw = dtypes.encode(old.dtype, values) if len(values) else b""
    per_row = old.nbytes // table.rows
    assert per_row * table.rows == old.nbytes
    runs = list(_runs(ids))
    passes = 1 + int((ids[1:] < ids[:-1]).sum())
    if ids.min() >= 0 and passes <= _PASSES and not (isinstance(old.content, Span) and len(runs) <= _SPANS):
        content: Content = Made(size * per_row, lambda: _chosen_rows(old.content, ids, per_row))
    else:
        content = _content(old.content, runs, raw, per_row)
    return replace(old, shape=shape, content=content)


def _chosen_rows(old: Content, ids: NDArray[np.int64], per_row: int) -> Iterator[bytes]:
    """The bytes of the rows `ids`, which ascend but for a few steps back; the table is read in windows."""
    import numpy as np

    back = np.flatnonzero(ids[1:] < ids[:-1]) + 1
    for part in np.split(ids, back):
        for first, window in row_windows(old, per_row):  # window [r, per_row]
            begin, end = np.searchsorted(part, [first, first + len(window)])
            if end > begin:
                yield window[part[begin:end] - first].tobytes()
            if end == len(part):
                break


def row_windows(old: Content, per_row: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """(first row, the bytes of some rows), through the whole table."""
    import numpy as np

    size, first = max(1, _WINDOW // per_row) * per_row, 0
    if isinstance(old, Span):
        with open(old.path, "rb") as handle:
            handle.seek(old.begin)
            for at in range(0, old.nbytes, size):
                window = np.frombuffer(handle.read(min(size, old.nbytes - at)), np.uint8)
                yield at // per_row, window.reshape(-1, per_row)
        return
    assert isinstance(old, Made)
    rest = b""
    for block in old.blocks():
        rest += bytes(block)
        whole = len(rest) // per_row * per_row
        if whole:
            yield first, np.frombuffer(rest[:whole], np.uint8).reshape(-1, per_row)
            first, rest = first + whole // per_row, rest[whole:]


def _runs(ids: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """(first, end) of runs of neighbouring rows; a new row k counts as -1 - k, and a run of new rows goes down."""
    import numpy as np

    step = np.diff(ids)
    same = ((step == 1) & (ids[:-1] >= 0)) | ((step == -1) & (ids[:-1] < 0))
    starts = np.concatenate([[0], np.flatnonzero(~same) + 1, [len(ids)]])
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        first = int(ids[begin])
        yield first, first + (end - begin) * (1 if first >= 0 else -1)


def _content(old: Content, runs: list[tuple[int, int]], raw: bytes, per_row: int) -> Content:
    total = sum(abs(end - first) for first, end in runs) * per_row

    def cut(first: int, end: int) -> slice:
        """The bytes of a run, in the old table or in the new rows."""
        return (
            slice(first * per_row, end * per_row) if first >= 0 else slice((-1 - first) * per_row, -(end + 1) * per_row)
        )

    if isinstance(old, Span) and len(runs) <= _SPANS:
        parts: list[Span | Made] = []
        for first, end in runs:
            at = cut(first, end)
            parts.append(Span(old.path, old.begin + at.start, old.begin + at.stop) if first >= 0 else Made.of(raw[at]))
        return parts[0] if len(parts) == 1 else Joined(tuple(parts))

    def blocks() -> Iterator[bytes | memoryview]:
        """A table that is not one range of a file, or that is cut into too many runs: read whole, once."""
        if isinstance(old, Span):
            with open(old.path, "rb") as handle:
                handle.seek(old.begin)
                whole = memoryview(handle.read(old.nbytes))
        else:
            assert isinstance(old, Made)
            whole = memoryview(b"".join(bytes(block) for block in old.blocks()))
        for first, end in runs:
            yield whole[cut(first, end)] if first >= 0 else raw[cut(first, end)]

    return Made(total, blocks)


def _declared(source: Source, size: int) -> tuple[dict[tuple[str, ...], Any], dict[str, Any]]:
    """vocab_size at every config level that has it; in a GGUF, the key of its metadata."""
    checkpoint = source.checkpoint
    if source.is_gguf:
        key = f"{checkpoint.architecture}.vocab_size"
        return {}, {key: size} if key in checkpoint.metadata else {}
    if source.layout.config is None:
        return {}, {}
    declared = declared_size(checkpoint)
    paths = size_paths(checkpoint, declared) if declared is not None else ()
    return dict.fromkeys(paths or (("vocab_size",),), size), {}


def _per_layer_sizes(source: Source, size: int) -> dict[tuple[str, ...], Any]:
    levels = config_levels(source.layout.config or {})
    return {(*path, PER_LAYER_SIZE): size for path, level in levels if PER_LAYER_SIZE in level}


def _refuse_offsets(source: Source, size: int) -> None:
    """Gemma 3n: the ids from an offset on are those of images and sound, whatever the embedding has there."""
    count = source.report.vocabulary.rows or 0
    for key, level in (source.layout.config or {}).items():
        offset = level.get("vocab_offset") if isinstance(level, Mapping) else None
        if type(offset) is int and size > count >= offset:
            raise BadRequest(
                f"config.json: {key}.vocab_offset is {offset:,}; the ids from there on are not text, so rows cannot be "
                "added behind them"
            )
