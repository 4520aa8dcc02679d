"""First pass of a corpus build: find out which files hold text, how much there is, and where it is split."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tiebeam.corpus.build_settings import CorpusSettings
from tiebeam.corpus.documents import NotTextError, read_documents
from tiebeam.corpus.split import Split, SplitCounter
from tiebeam.corpus.text_chunks import TextChunk
from tiebeam.corpus.text_sources import SourceFile, SourceFiles
from tiebeam.errors import BadRequest, UnreadableInput

Progress = Callable[[str, int, int], None]  # stage, bytes done, bytes in total (0 while unknown)

_SKIP_REASONS = {
    "binary": "binary",
    "not UTF-8": "not UTF-8",
    "empty": "empty",
    "hidden": "hidden",
    "corpus": "built corpora",
    "link": "links out of their directory",
    "special": "not regular files",
}


@dataclass(frozen=True)
class Scan:
    """Result of the first pass."""

    files: tuple[SourceFile, ...]  # those that hold text, up to max_bytes
    examined: int  # number of listed files that were opened for that
    digest: str  # of their contents
    bytes: int
    split: Split
    skipped: Counter[str]


def scan_sources(sources: SourceFiles, settings: CorpusSettings, report: Progress) -> Scan:
    limit = settings.max_bytes
    total = SplitCounter(int(settings.val_fraction * 2**64))
    skipped = Counter(sources.skipped)
    files: list[SourceFile] = []
    contents = hashlib.sha256()
    examined = 0
    for file in sources.files:
        examined += 1
        contents.update(file.digest())
        own = SplitCounter(total.threshold)
        try:
            for chunk in read_chunks([file], settings, total.bytes):
                own.add(chunk)
                report("reading", total.bytes + own.bytes, 0)
        except NotTextError as error:
            if file.named:
                raise UnreadableInput(str(error)) from None
            skipped[error.kind] += 1
            continue
        if own.documents:
            files.append(file)
            total.merge(own)
        else:
            skipped["empty"] += 1
        if limit is not None and total.bytes > limit - 4:  # less than one UTF-8 character is left
            break
    if not total.documents:
        reasons = f" (skipped {describe_skipped(+skipped)})" if +skipped else ""
        raise UnreadableInput(f"these sources hold no text{reasons}; pass text, .jsonl or .parquet files")
    if total.bytes < 2:
        raise BadRequest("a text of 1 byte is too short for a train and a validation split; pass more text")
    split = total.decide(settings.val_fraction)
    return Scan(tuple(files), examined, contents.hexdigest(), total.bytes, split, +skipped)


def read_chunks(files: Sequence[SourceFile], settings: CorpusSettings, done: int = 0) -> Iterator[TextChunk]:
    """Yield the documents of the files in chunks, up to max_bytes; `done` bytes were read before."""
    limit = settings.max_bytes
    for file in files:
        for chunk in read_documents(file, settings.text_field):
            if limit is not None:
                raw = chunk.text.encode()
                if done + len(raw) > limit:
                    text = raw[: limit - done].decode(errors="ignore")
                    if text:
                        yield TextChunk(text, chunk.starts_document)
                    return
                done += len(raw)
            yield chunk


def describe_skipped(skipped: Counter[str]) -> str:
    """'1 binary, 2 not UTF-8'"""
    return ", ".join(f"{count:,} {_SKIP_REASONS[kind]}" for kind, count in sorted(skipped.items()))
