"""Read the documents of one source file: plain text, .jsonl rows, .parquet rows, or the topics of pydoc.

Text is UTF-8, newlines as they are, a byte-order mark dropped. A text file is one document, or several when lines that
are only <|endoftext|> separate them. A plain file that is not text raises NotTextError: the caller refuses it when the
user named it and skips it when it was found in a directory. Damaged .jsonl, .parquet and compressed files are always
errors, because their suffix promises a format.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any

from tiebeam.corpus.text_chunks import TextChunk, chunks_of_documents, chunks_of_stream
from tiebeam.corpus.text_sources import SourceFile, first_line
from tiebeam.errors import MissingExtra, UnreadableInput

MAX_ROW = 64 << 20  # bytes of one line of JSON
_BLOCK = 1 << 18


class NotTextError(Exception):
    """A plain file holds something other than UTF-8 text; `kind` is "binary" or "not UTF-8"."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


def read_documents(file: SourceFile, text_field: str = "text") -> Iterator[TextChunk]:
    """Yield the documents of one file in chunks. Raises NotTextError for a plain file that is not text."""
    if file.kind == "topics":
        from pydoc_data.topics import topics

        return chunks_of_documents(topics[name] for name in sorted(topics))
    if file.kind == "jsonl":
        return chunks_of_documents(_jsonl_rows(file, text_field))
    if file.kind == "parquet":
        return chunks_of_documents(_parquet_rows(file, text_field))
    return chunks_of_stream(_text_blocks(file))


def _text_blocks(file: SourceFile) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    with file.open() as stream:
        while True:
            block = stream.read(_BLOCK)
            if done == 0 and b"\0" in block[:8192]:
                raise NotTextError("binary", f"{file.path} is a binary file; pass text, .jsonl or .parquet files")
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                position = done - pending + error.start
                raise NotTextError(
                    "not UTF-8",
                    f"{file.path} is not UTF-8 (byte {position:,}); convert it: iconv -f LATIN1 -t UTF-8 OLD > NEW",
                ) from None
            if done == 0:
                text = text.removeprefix("\ufeff")
            done += len(block)
            if text:
                yield text
            if not block:
                return


def _jsonl_rows(file: SourceFile, text_field: str) -> Iterator[str]:
    with file.open() as stream:
        number = 0
        while line := stream.readline(MAX_ROW + 1):
            number += 1
            where = f"{file.path}, line {number:,},"
            if len(line) > MAX_ROW:
                raise UnreadableInput(
                    f"{where} exceeds the limit of {MAX_ROW >> 20} MiB per row; split it into several documents"
                )
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                raise UnreadableInput(f"{where} is not JSON: {error}") from None
            if not isinstance(row, dict) or text_field not in row:
                fields = ", ".join(list(row)[:8]) if isinstance(row, dict) else f"a {type(row).__name__}"
                raise UnreadableInput(
                    f"{where} has no field {text_field!r} (it holds {fields}); set text_field to one that exists"
                )
            yield from _row_text(row[text_field], where, text_field)


def _parquet_rows(file: SourceFile, text_field: str) -> Iterator[str]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra(f"{file.path} (parquet)", "corpus") from None
    with file.open() as stream:
        try:
            table = pyarrow.parquet.ParquetFile(stream)
            columns = table.schema_arrow.names
            if text_field not in columns:
                raise UnreadableInput(
                    f"{file.path} has no column {text_field!r} (it holds {', '.join(columns[:8])}); "
                    "set text_field to one that exists"
                )
            for batch in table.iter_batches(batch_size=256, columns=[text_field]):
                for value in batch.column(0).to_pylist():
                    yield from _row_text(value, str(file.path), text_field)
        except (pyarrow.ArrowException, OSError) as error:
            raise UnreadableInput(f"{file.path} is not a readable parquet file: {first_line(error)}") from None


def _row_text(value: Any, where: str, text_field: str) -> Iterator[str]:
    """Yield the text of a row; null and empty rows hold no document."""
    if value is None or value == "":
        return
    if not isinstance(value, str):
        kind = type(value).__name__
        raise UnreadableInput(f"{where} holds a {kind} in {text_field!r}, not text; set text_field to a text field")
    if any("\ud800" <= character <= "\udfff" for character in value):  # "\ud83d" alone is valid JSON, but not Unicode
        raise UnreadableInput(f"{where} holds half of a surrogate pair in {text_field!r}, which is not Unicode text")
    yield value
