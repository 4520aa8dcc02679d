"""Split documents into chunks, so that no file is ever held in memory as a whole.

A long document becomes chunks of 16 to 64 thousand characters, cut before a space that follows a word. Pre-tokenizers
of the GPT-2 kind never let a token cross that position, so the tokens are those of the whole document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

BOUNDARY = "<|endoftext|>"
MIN_CHUNK, MAX_CHUNK = 16_384, 65_536  # characters; from 16K on the tokenizer keeps every core busy

_SEPARATOR = re.compile(r"<\|endoftext\|>(?<![^\n]<\|endoftext\|>)\r?\n")  # begins with a literal: fast to search for
_LAST_SEPARATOR = re.compile(r"<\|endoftext\|>(?<![^\n]<\|endoftext\|>)\r?\Z")
_BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")
_AFTER_A_WORD = re.compile(r"(?<=\S)[ \n]")


class TextChunk(NamedTuple):
    """Part of a document."""

    text: str
    starts_document: bool


def split_text(text: str) -> Iterator[str]:
    """Cut a text where no token can cross the cut.

    >>> [len(part) for part in split_text("word " * 20_000)]
    [16384, 16385, 16385, 50846]
    """
    start = 0
    while len(text) - start > MAX_CHUNK:
        end = _cut_position(text, start)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def chunks_of_documents(documents: Iterable[str]) -> Iterator[TextChunk]:
    """Chunks of documents that arrive as whole strings."""
    for document in documents:
        for number, text in enumerate(split_text(document)):
            yield TextChunk(text, number == 0)


def chunks_of_stream(blocks: Iterable[str]) -> Iterator[TextChunk]:
    """Chunks of a text that arrives in blocks of any size; lines that are only <|endoftext|> separate documents."""
    rest, first = "", True  # `first`: rest begins a document
    for block in blocks:
        rest += block
        while separator := _SEPARATOR.search(rest, 0 if first else 1):
            for text in split_text(rest[: separator.start()]):
                yield TextChunk(text, first)
                first = False
            rest, first = rest[separator.end() :], True
        start = 0
        while len(rest) - start > 2 * MAX_CHUNK:  # the remainder holds any separator that is still arriving
            end = _cut_position(rest, start)
            yield TextChunk(rest[start:end], first)
            start, first = end, False
        rest = rest[start:]
    if separator := _LAST_SEPARATOR.search(rest, 0 if first else 1):
        rest = rest[: separator.start()]
    for text in split_text(rest):
        yield TextChunk(text, first)
        first = False


def _cut_position(text: str, start: int) -> int:
    """End of the chunk that begins at `start`: between words, else before white space, else at the maximum length."""
    shortest, longest = start + MIN_CHUNK, start + MAX_CHUNK
    found = _BETWEEN_WORDS.search(text, shortest, longest) or _AFTER_A_WORD.search(text, shortest, longest)
    return found.start() if found else longest
