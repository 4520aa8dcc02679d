"""Sources -> corpus, in three readings: count and split, learn the vocabulary, write the tokens.

What is there is used again: a finished corpus of the same files, settings and contents is opened as it is, and an
interrupted build goes on from its last mark. Memory does not grow with the text: one batch of pieces is held, and the
vocabulary is learned from an even sample when there is more text than it needs.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiebeam._fs import write_bytes, write_json
from tiebeam._version import __version__
from tiebeam.corpus.build_directory import partial_directory, put_in_place, refuse_foreign
from tiebeam.corpus.shards import SHARD_TOKENS, ShardWriter, Tokens, open_shard
from tiebeam.corpus.split import SIDES, Census, Side, Split
from tiebeam.corpus.store import (
    FORMAT,
    MANIFEST,
    Corpus,
    cache_directory,
    is_corpus,
    open_built,
    open_corpus,
    read_manifest,
)
from tiebeam.corpus.text_sources import BOUNDARY, PYTHON, Listing, NotText, Piece, SourceFile, list_sources, read_pieces
from tiebeam.corpus.training_tokenizer import SMALLEST_VOCAB, Tokenizer, bytes_of, open_tokenizer, train_bpe
from tiebeam.errors import BadRequest, UnreadableInput

Progress = Callable[[str, int, int], None]  # stage, bytes done, bytes in all (0 while that is not known)

SECONDS_BETWEEN_MARKS = 10.0
_BATCH_CHARACTERS = 1 << 20
_STATE = "state.json"


@dataclass(frozen=True)
class Settings:
    """Everything besides the text that decides what a corpus holds."""

    vocab: int
    tokenizer: str | None  # SHA-256 of a given tokenizer's file
    boundary: str | None
    val_fraction: float
    max_bytes: int | None
    text_field: str
    tokenizer_bytes: int
    shard_tokens: int

    def __post_init__(self) -> None:
        if self.tokenizer is None and self.vocab < SMALLEST_VOCAB:
            raise BadRequest(
                f"a vocabulary of {self.vocab} cannot hold 256 bytes and a boundary; ask for {SMALLEST_VOCAB} or more"
            )
        if not 0 < self.val_fraction < 1:
            raise BadRequest(f"the validation fraction is {self.val_fraction}; it lies between 0 and 1, such as 0.05")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise BadRequest(f"a corpus of at most {self.max_bytes} bytes holds nothing; ask for more")


@dataclass(frozen=True)
class _Plan:
    """What the first reading found."""

    files: tuple[SourceFile, ...]  # those that hold text, as far as max_bytes goes
    examined: int  # how many files of the listing that took
    digest: str  # of their contents
    bytes: int
    split: Split
    skipped: Counter[str]


def build_corpus(
    sources: Sequence[str | os.PathLike[str]] = (),
    out_dir: str | os.PathLike[str] | None = None,
    *,
    vocab: int = 2048,
    tokenizer: str | os.PathLike[str] | None = None,
    boundary: str | None = None,
    val_fraction: float = 0.05,
    max_bytes: int | None = None,
    text_field: str = "text",
    tokenizer_bytes: int = 32_000_000,
    shard_tokens: int = SHARD_TOKENS,
    progress: Progress | None = None,
) -> Corpus:
    """Tokenise the sources, or open what an equal call built before.

    Without sources it is the library of this Python; a single source that already holds tokens is opened as it is.
    Without out_dir the corpus lives in the cache (`Corpus.path` says where). max_bytes stops after that much text.
    """
    if len(sources) == 1 and is_corpus(sources[0]):
        return open_corpus(sources[0], tokenizer, boundary)
    given = open_tokenizer(tokenizer, boundary) if tokenizer is not None else None
    settings = Settings(
        vocab=given.vocab if given else vocab,
        tokenizer=hashlib.sha256(given.raw).hexdigest() if given else None,
        boundary=boundary,
        val_fraction=val_fraction,
        max_bytes=max_bytes,
        text_field=text_field,
        tokenizer_bytes=tokenizer_bytes,
        shard_tokens=shard_tokens,
    )
    report = progress or (lambda stage, done, total: None)
    listing = list_sources(sources)
    key = _key(listing, settings)
    target = Path(out_dir).expanduser().absolute() if out_dir is not None else cache_directory() / "corpus" / key[:16]
    if found := _finished(target, key, listing):
        return found
    refuse_foreign(target)
    with partial_directory(target, lambda: report("waiting for another build of this corpus", 0, 0)) as directory:
        if found := _finished(target, key, listing):  # by another process, while this one waited
            return found
        _Builder(directory, key, settings, given, report).build(
            listing, [str(source) for source in sources] or [PYTHON]
        )
        put_in_place(directory, target)
    return open_built(target, read_manifest(target))


def _key(listing: Listing, settings: Settings) -> str:
    """What a corpus is to be made of, before anything is read; contents are compared on top of it."""
    made = [FORMAT, _tokenizers_version(), asdict(settings), [[file.name, file.size] for file in listing.files]]
    return hashlib.sha256(json.dumps(made).encode()).hexdigest()


def _finished(target: Path, key: str, listing: Listing) -> Corpus | None:
    """The corpus at target, if it is whole and made of exactly this; a damaged one is built again."""
    if not (target / MANIFEST).is_file():
        return None
    with contextlib.suppress(UnreadableInput, KeyError, TypeError):
        manifest = read_manifest(target)
        if manifest["key"] == key and manifest["digest"] == _contents(listing.files[: manifest["examined"]]):
            return open_built(target, manifest, cached=True)
    return None


def _contents(files: Sequence[SourceFile]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.digest())
    return digest.hexdigest()


class _Builder:
    """One build in one directory."""

    def __init__(
        self, directory: Path, key: str, settings: Settings, given: Tokenizer | None, report: Progress
    ) -> None:
        self.directory, self.key, self.settings, self.given, self.report = directory, key, settings, given, report

    def build(self, listing: Listing, sources: list[str]) -> None:
        plan = self._count(listing)
        state = self._take_up(plan)
        tokenizer = self._tokenizer(plan)
        splits = self._encode(plan, tokenizer, state)
        versions = {"tiebeam": __version__, "tokenizers": _tokenizers_version(), "python": platform.python_version()}
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "sources": sources,
            "settings": asdict(self.settings),
            "versions": versions,
            "key": self.key,
            "examined": plan.examined,
            "digest": plan.digest,
            "tokenizer": {
                "kind": tokenizer.kind,
                "file": tokenizer.filename,
                "vocab": tokenizer.vocab,
                "boundary": tokenizer.boundary_text,
                "sha256": hashlib.sha256(tokenizer.raw).hexdigest(),
            },
            "train": splits["train"],
            "val": splits["val"],
            "skipped": dict(plan.skipped),
            "notes": _notes(plan, self.settings, tokenizer, splits),
        }
        write_json(self.directory / MANIFEST, manifest)
        (self.directory / _STATE).unlink()

    def _count(self, listing: Listing) -> _Plan:
        """The first reading: what is text, how much of it there is, and where it is split."""
        limit = self.settings.max_bytes
        census = Census(int(self.settings.val_fraction * 2**64))
        skipped = Counter(listing.skipped)
        files: list[SourceFile] = []
        contents = hashlib.sha256()
        examined = 0
        for file in listing.files:
            examined += 1
            contents.update(file.digest())
            own = Census(census.threshold)
            try:
                for piece in self._pieces([file], census.bytes):
                    own.add(piece)
                    self.report("reading", census.bytes + own.bytes, 0)
            except NotText as error:
                if file.named:
                    raise UnreadableInput(str(error)) from None
                skipped[error.kind] += 1
                continue
            if own.documents:
                files.append(file)
                census.merge(own)
            else:
                skipped["empty"] += 1
            if limit is not None and census.bytes > limit - 4:  # no room for one more character
                break
        if not census.documents:
            passed = f" (passed over {_listed(+skipped)})" if +skipped else ""
            raise UnreadableInput(f"there is no text in these sources{passed}; name text, .jsonl or .parquet files")
        if census.bytes < 2 or (limit is not None and limit < 2):
            raise BadRequest(f"a text of {census.bytes} bytes cannot be divided into train and validation; give more")
        split = census.settle(self.settings.val_fraction)
        return _Plan(tuple(files), examined, contents.hexdigest(), census.bytes, split, +skipped)

    def _pieces(self, files: Sequence[SourceFile], done: int = 0) -> Iterator[Piece]:
        """Their documents, as far as max_bytes goes."""
        limit = self.settings.max_bytes
        for file in files:
            for piece in read_pieces(file, self.settings.text_field):
                if limit is not None:
                    raw = piece.text.encode()
                    if done + len(raw) > limit:
                        text = raw[: limit - done].decode(errors="ignore")
                        if text:
                            yield Piece(text, piece.first)
                        return
                    done += len(raw)
                yield piece

    def _take_up(self, plan: _Plan) -> dict[str, Any]:
        """The state of an interrupted build of the same corpus; anything else in the directory is deleted."""
        path = self.directory / _STATE
        with contextlib.suppress(OSError, ValueError):
            state = json.loads(path.read_bytes())
            if isinstance(state, dict) and (state.get("key"), state.get("digest")) == (self.key, plan.digest):
                return state
        for stale in self.directory.iterdir():
            stale.unlink()
        state = {"key": self.key, "digest": plan.digest}
        write_json(path, state)
        return state

    def _tokenizer(self, plan: _Plan) -> Tokenizer:
        if self.given is not None:
            write_bytes(self.directory / self.given.filename, self.given.raw)
            return self.given
        path = self.directory / "tokenizer.json"
        if path.is_file():
            return open_tokenizer(path, BOUNDARY)
        tokenizer = train_bpe(self._sample(plan), self.settings.vocab)
        write_bytes(path, tokenizer.raw)
        return tokenizer

    def _sample(self, plan: _Plan) -> Iterator[str]:
        """Text of the train split to learn the vocabulary from: all of it, or an even sample of tokenizer_bytes."""
        share = min(1.0, self.settings.tokenizer_bytes / plan.bytes)
        seen = taken = 0
        for side, piece in plan.split.sides(self._pieces(plan.files)):
            size = len(piece.text.encode())
            seen += size
            self.report("learning the vocabulary", seen, plan.bytes)
            if side == "train" and taken + size <= share * seen:
                taken += size
                yield piece.text

    def _encode(self, plan: _Plan, tokenizer: Tokenizer, state: dict[str, Any]) -> dict[Side, dict[str, Any]]:
        """The last reading: tokens into shards, with a mark every few seconds to go on from."""
        size, vocab = self.settings.shard_tokens, tokenizer.vocab
        counts = {side: _Count(last=tokenizer.boundary) for side in SIDES}
        done = 0
        if "pieces" in state:
            marked = {side: _Count(**state["splits"][side]) for side in SIDES}
            if all(ShardWriter.can_resume(self.directory, side, vocab, marked[side].tokens, size) for side in SIDES):
                counts, done = marked, state["pieces"]
        writers = {side: ShardWriter(self.directory, side, vocab, counts[side].tokens, size) for side in SIDES}
        when = time.monotonic()
        for batch in _batches(itertools.islice(plan.split.sides(self._pieces(plan.files)), done, None)):
            done += len(batch)
            encoded = tokenizer.encode([piece for _, piece in batch])
            for side in SIDES:
                tokens = counts[side].add(
                    tokenizer, [(p, t) for (s, p), t in zip(batch, encoded, strict=True) if s == side]
                )
                writers[side].append(tokens)
            self.report("tokenising", sum(count.bytes for count in counts.values()), plan.bytes)
            if time.monotonic() - when > SECONDS_BETWEEN_MARKS:
                for writer in writers.values():
                    writer.mark()
                standing = {side: asdict(counts[side]) for side in SIDES}
                write_json(self.directory / _STATE, {**state, "splits": standing, "pieces": done})
                when = time.monotonic()
        return {side: counts[side].to_dict(writers[side].close()) for side in SIDES}


@dataclass
class _Count:
    """What one split holds so far."""

    last: int  # its last token
    documents: int = 0
    bytes: int = 0  # of the text
    spelled: int = 0  # the bytes that its tokens say they stand for; the same, if the tokenizer is exact
    tokens: int = 0

    def add(self, tokenizer: Tokenizer, encoded: Sequence[tuple[Piece, Tokens]]) -> Tokens:
        """The stream of these pieces, a boundary before each document."""
        boundary = np.array([tokenizer.boundary])
        parts: list[Tokens] = []
        for piece, tokens in encoded:
            self.bytes += len(piece.text.encode())
            if piece.first:
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


def _batches(pieces: Iterator[tuple[Side, Piece]]) -> Iterator[list[tuple[Side, Piece]]]:
    batch: list[tuple[Side, Piece]] = []
    characters = 0
    for side, piece in pieces:
        batch.append((side, piece))
        characters += len(piece.text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _notes(plan: _Plan, settings: Settings, tokenizer: Tokenizer, splits: dict[Side, dict[str, Any]]) -> list[str]:
    notes = []
    if missed := _listed(Counter({kind: count for kind, count in plan.skipped.items() if kind not in _EXPECTED})):
        notes.append(f"passed over {missed}")
    if plan.split.tail is not None:
        notes.append(f"the text is one document: its last {splits['val']['bytes']:,} bytes are held out")
    elif plan.split.moved is not None:
        notes.append("few documents: one was chosen for the split that chance left empty")
    if splits["val"]["tokens"] < 4096:
        notes.append(f"only {splits['val']['tokens']:,} tokens are held out; their loss will be noisy")
    if settings.tokenizer is None and tokenizer.vocab < settings.vocab:
        notes.append(f"this text yields a vocabulary of {tokenizer.vocab:,}, not {settings.vocab:,}")
    text, spelled = (sum(split[what] for split in splits.values()) for what in ("bytes", "spelled"))
    if text != spelled:
        notes.append(
            f"the tokenizer rewrites this text: its tokens stand for {spelled:,} bytes and the text has {text:,}; "
            "losses per byte are of the text"
        )
    return notes


_NAMES = {
    "binary": "binary",
    "not UTF-8": "not UTF-8",
    "empty": "empty",
    "hidden": "hidden",
    "corpus": "built corpora",
    "link": "links out of their directory",
    "special": "not regular files",
}


_EXPECTED = ("empty", "hidden", "corpus")  # nobody misses these


def _listed(skipped: Counter[str]) -> str:
    return ", ".join(f"{count:,} {_NAMES[kind]}" for kind, count in sorted(skipped.items()))


def _sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _tokenizers_version() -> str:
    import tokenizers

    return tokenizers.__version__
