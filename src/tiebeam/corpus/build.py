"""Build a corpus from text in three passes: scan and split, train the tokenizer, write token shards.

A finished corpus of the same files, settings and contents is opened instead of built again, and an interrupted build
resumes from its last checkpoint. Memory does not grow with the text: one batch of chunks is held, and the tokenizer is
trained on an even sample when there is more text than it needs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tiebeam._fs import explaining, write_bytes, write_json
from tiebeam._version import __version__
from tiebeam.corpus.build_directory import clear_partial, partial_directory, put_in_place, refuse_foreign
from tiebeam.corpus.build_settings import CorpusSettings
from tiebeam.corpus.encode_shards import STATE, encode_shards
from tiebeam.corpus.scan_sources import Progress, Scan, describe_skipped, read_chunks, scan_sources
from tiebeam.corpus.shards import SHARD_TOKENS
from tiebeam.corpus.split import SplitName
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
from tiebeam.corpus.text_chunks import BOUNDARY
from tiebeam.corpus.text_sources import PYTHON, SourceFile, SourceFiles, list_sources
from tiebeam.corpus.training_tokenizer import Tokenizer, open_tokenizer, train_bpe
from tiebeam.errors import UnreadableInput

_SKIPPED_SILENTLY = ("empty", "hidden", "corpus")


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
    """Tokenise text, or open the corpus that an equal call built before.

    `sources` are files, directories or "@python" (the default: the standard library of this Python). A single source
    that already holds tokens is opened as it is. Without `out_dir` the corpus is kept in the cache (`Corpus.path`).
    `tokenizer` is used instead of training a BPE of `vocab` tokens; `max_bytes` limits the text.

    >>> corpus = build_corpus(vocab=300, max_bytes=20_000)
    >>> corpus.vocab
    300
    """
    if len(sources) == 1 and is_corpus(sources[0]):
        return open_corpus(sources[0], tokenizer, boundary)
    given = open_tokenizer(tokenizer, boundary) if tokenizer is not None else None
    settings = CorpusSettings(
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
    listed = list_sources(sources)
    key = _key(listed, settings)
    target = Path(out_dir).expanduser().absolute() if out_dir is not None else cache_directory() / "corpus" / key[:16]
    if found := _finished(target, key, listed):
        clear_partial(target)
        return found
    refuse_foreign(target)

    def waiting() -> None:
        report("waiting for another build of this corpus", 0, 0)

    with explaining(target), partial_directory(target, waiting) as directory:
        if found := _finished(target, key, listed):  # built by another process while this one waited
            return found
        names = [str(source) for source in sources] or [PYTHON]
        _build(directory, key, settings, given, listed, names, report)
        put_in_place(directory, target)
    return open_built(target, read_manifest(target))


def _key(listed: SourceFiles, settings: CorpusSettings) -> str:
    """Identify a corpus before anything is read; the contents are compared in addition."""
    made = [FORMAT, _tokenizers_version(), asdict(settings), [[file.name, file.size] for file in listed.files]]
    return hashlib.sha256(json.dumps(made).encode()).hexdigest()


def _finished(target: Path, key: str, listed: SourceFiles) -> Corpus | None:
    """Open the corpus at target if it is complete and built from exactly this; a damaged one is built again."""
    if not (target / MANIFEST).is_file():
        return None
    with contextlib.suppress(UnreadableInput, KeyError, TypeError):
        manifest = read_manifest(target)
        if manifest["key"] == key and manifest["digest"] == _contents(listed.files[: manifest["examined"]]):
            return open_built(target, manifest, cached=True)
    return None


def _contents(files: Sequence[SourceFile]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.digest())
    return digest.hexdigest()


def _build(
    directory: Path, key: str, settings: CorpusSettings, given: Tokenizer | None, listed: SourceFiles,
    sources: list[str], report: Progress,
) -> None:  # fmt: skip
    """Write a whole corpus into `directory`; the manifest comes last."""
    scan = scan_sources(listed, settings, report)
    state = _resume_state(directory, key, scan)
    tokenizer = _tokenizer(directory, given, settings, scan, report)
    splits = encode_shards(directory, scan, settings, tokenizer, state, report)
    versions = {"tiebeam": __version__, "tokenizers": _tokenizers_version(), "python": platform.python_version()}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "sources": sources,
        "settings": asdict(settings),
        "versions": versions,
        "key": key,
        "examined": scan.examined,
        "digest": scan.digest,
        "tokenizer": {
            "kind": tokenizer.kind,
            "file": tokenizer.filename,
            "vocab": tokenizer.vocab,
            "boundary": tokenizer.boundary_text,
            "sha256": hashlib.sha256(tokenizer.raw).hexdigest(),
        },
        "train": splits["train"],
        "val": splits["val"],
        "skipped": dict(scan.skipped),
        "notes": _notes(scan, settings, tokenizer, splits),
    }
    write_json(directory / MANIFEST, manifest)
    (directory / STATE).unlink()


def _resume_state(directory: Path, key: str, scan: Scan) -> dict[str, Any]:
    """Load the checkpoint of an interrupted build of the same corpus; delete anything else."""
    path = directory / STATE
    with contextlib.suppress(OSError, ValueError):
        state = json.loads(path.read_bytes())
        if isinstance(state, dict) and (state.get("key"), state.get("digest")) == (key, scan.digest):
            return state
    for stale in directory.iterdir():
        stale.unlink()
    state = {"key": key, "digest": scan.digest}
    write_json(path, state)
    return state


def _tokenizer(
    directory: Path, given: Tokenizer | None, settings: CorpusSettings, scan: Scan, report: Progress
) -> Tokenizer:
    if given is not None:
        write_bytes(directory / given.filename, given.raw)
        return given
    path = directory / "tokenizer.json"
    if path.is_file():
        return open_tokenizer(path, BOUNDARY)
    tokenizer = train_bpe(_training_sample(settings, scan, report), settings.vocab)
    write_bytes(path, tokenizer.raw)
    return tokenizer


def _training_sample(settings: CorpusSettings, scan: Scan, report: Progress) -> Iterator[str]:
    """Text of the train split for the tokenizer: all of it, or an even sample of tokenizer_bytes."""
    share = min(1.0, settings.tokenizer_bytes / scan.bytes)
    seen = taken = 0
    for split, chunk in scan.split.assign(read_chunks(scan.files, settings)):
        size = len(chunk.text.encode())
        seen += size
        report("training the tokenizer", seen, scan.bytes)
        if split == "train" and taken + size <= share * seen:
            taken += size
            yield chunk.text


def _notes(
    scan: Scan, settings: CorpusSettings, tokenizer: Tokenizer, splits: dict[SplitName, dict[str, Any]]
) -> list[str]:
    """What the user should know about this corpus, one sentence each."""
    notes = []
    worth_a_note = Counter({kind: count for kind, count in scan.skipped.items() if kind not in _SKIPPED_SILENTLY})
    if skipped := describe_skipped(worth_a_note):
        notes.append(f"skipped {skipped}")
    if scan.split.cut_at is not None:
        notes.append(f"the text is one document: its last {splits['val']['bytes']:,} bytes are held out")
    elif scan.split.moved is not None:
        notes.append("few documents: one was moved to the split that would have been empty")
    if splits["val"]["tokens"] < 4096:
        notes.append(f"only {splits['val']['tokens']:,} tokens are held out; their loss will be noisy")
    if settings.tokenizer is None and tokenizer.vocab < settings.vocab:
        notes.append(f"this text yields a vocabulary of {tokenizer.vocab:,}, not {settings.vocab:,}")
    text, spelled = (sum(split[what] for split in splits.values()) for what in ("bytes", "spelled"))
    if text != spelled:
        notes.append(
            f"the tokenizer changes this text: its tokens decode to {spelled:,} bytes and the text has {text:,}; "
            "losses per byte refer to the text"
        )
    return notes


def _tokenizers_version() -> str:
    import tokenizers

    return tokenizers.__version__
