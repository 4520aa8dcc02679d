"""Last pass of a corpus build: encode every document and write token shards, with a checkpoint every few seconds."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiebeam._fs import write_json
from tiebeam.corpus.build_settings import CorpusSettings
from tiebeam.corpus.scan_sources import Progress, Scan, read_chunks
from tiebeam.corpus.shards import ShardWriter, Tokens, open_shard
from tiebeam.corpus.split import SPLITS, SplitName
from tiebeam.corpus.text_chunks import TextChunk
from tiebeam.corpus.training_tokenizer import Tokenizer, bytes_of

SECONDS_BETWEEN_CHECKPOINTS = 10.0
STATE = "state.json"
_BATCH_CHARACTERS = 1 << 20


@dataclass
class SplitCounts:
    """Contents of one split so far."""

    last: int  # its last token
    documents: int = 0
    bytes: int = 0  # of the text
    spelled: int = 0  # bytes by bytes_per_token; equal to `bytes` if the tokenizer is lossless
    tokens: int = 0

    def add(self, tokenizer: Tokenizer, encoded: Sequence[tuple[TextChunk, Tokens]]) -> Tokens:
        """Count encoded chunks and return them as one stream, with a boundary token before each document."""
        boundary = np.array([tokenizer.boundary])
        parts: list[Tokens] = []
        for chunk, tokens in encoded:
            self.bytes += len(chunk.text.encode())
            if chunk.starts_document:
                self.documents += 1
                parts.append(boundary)
            parts.append(tokens)
        if not parts:
            return boundary[:0]
        stream = np.concatenate(parts)
        if len(stream):
            self.spelled += bytes_of(tokenizer, stream, np.concatenate(([self.last], stream[:-1])))
            self.last = int(stream[-1])
        self.tokens += len(stream)
        return stream

    def to_dict(self, shards: Iterable[Path]) -> dict[str, Any]:
        about = [{"file": path.name, "tokens": len(open_shard(path)), "sha256": _sha256(path)} for path in shards]
        return {
            "documents": self.documents,
            "bytes": self.bytes,
            "spelled": self.spelled,
            "tokens": self.tokens,
            "shards": about,
        }


def encode_shards(
    directory: Path, scan: Scan, settings: CorpusSettings, tokenizer: Tokenizer, state: dict[str, Any], report: Progress
) -> dict[SplitName, dict[str, Any]]:
    """Write both splits into `directory`, continuing from the checkpoint in `state` if its shards are on disk."""
    size, vocab = settings.shard_tokens, tokenizer.vocab
    counts = {split: SplitCounts(last=tokenizer.boundary) for split in SPLITS}
    done = 0
    if "pieces" in state:
        saved = {split: SplitCounts(**state["splits"][split]) for split in SPLITS}
        if all(ShardWriter.can_resume(directory, split, vocab, saved[split].tokens, size) for split in SPLITS):
            counts, done = saved, state["pieces"]
    writers = {split: ShardWriter(directory, split, vocab, counts[split].tokens, size) for split in SPLITS}
    last_checkpoint = time.monotonic()
    chunks = scan.split.assign(read_chunks(scan.files, settings))
    for batch in _batches(itertools.islice(chunks, done, None)):
        done += len(batch)
        encoded = tokenizer.encode([chunk for _, chunk in batch])
        for split in SPLITS:
            mine = [(chunk, ids) for (name, chunk), ids in zip(batch, encoded, strict=True) if name == split]
            writers[split].append(counts[split].add(tokenizer, mine))
        report("tokenising", sum(count.bytes for count in counts.values()), scan.bytes)
        if time.monotonic() - last_checkpoint > SECONDS_BETWEEN_CHECKPOINTS:
            for writer in writers.values():
                writer.flush()
            progress = {split: asdict(counts[split]) for split in SPLITS}
            write_json(directory / STATE, {**state, "splits": progress, "pieces": done})
            last_checkpoint = time.monotonic()
    return {split: counts[split].to_dict(writers[split].close()) for split in SPLITS}


def _batches(chunks: Iterator[tuple[SplitName, TextChunk]]) -> Iterator[list[tuple[SplitName, TextChunk]]]:
    batch: list[tuple[SplitName, TextChunk]] = []
    characters = 0
    for split, chunk in chunks:
        batch.append((split, chunk))
        characters += len(chunk.text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
