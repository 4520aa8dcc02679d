"""A corpus on disk: a directory with corpus.json, a tokenizer, and the shards of two splits.

corpus.json is written last and the directory is renamed into directory, so a directory that has one is complete. A
directory of shards from elsewhere (parameter-golf's fineweb_train_*.bin, fineweb_val_*.bin) is a corpus too, given its
tokenizer; its bytes are then counted from the tokens.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tiebeam.checkpoint.json_files import parse_json
from tiebeam.corpus.shards import TokenStream, open_shard
from tiebeam.corpus.training_tokenizer import Tokenizer, bytes_of, open_tokenizer
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.limits import MAX_CORPUS_MANIFEST

MANIFEST = "corpus.json"
FORMAT = "tiebeam corpus 1"


def cache_directory() -> Path:
    """Default location of corpora: TIEBEAM_CACHE, else tiebeam/ in the user's cache directory."""
    own = os.environ.get("TIEBEAM_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "tiebeam"


def bits_per_byte(nats_per_token: float, tokens: int, bytes_of_text: int) -> float:
    """Convert a mean loss over `tokens` targets, which decode to `bytes_of_text` bytes, to bits per byte.

    >>> round(bits_per_byte(math.log(256), tokens=10, bytes_of_text=10), 6)
    8.0
    """
    return nats_per_token / math.log(2) * tokens / bytes_of_text


@dataclass(frozen=True)
class Corpus:
    """Two token streams, their tokenizer, and the number of bytes they decode to.

    A boundary token starts every document, so all tokens of the text are targets of the stream: the summed loss over
    len(val) - 1 targets divided by bytes_val is the loss per byte of the held-out text.
    """

    path: Path
    tokenizer: Tokenizer
    train: TokenStream
    val: TokenStream
    cached: bool = False
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def vocab(self) -> int:
        return self.tokenizer.vocab

    @property
    def boundary(self) -> int:
        return self.tokenizer.boundary

    @property
    def bytes_per_token(self) -> npt.NDArray[np.int64]:  # [V]
        return self.tokenizer.bytes_per_token

    @cached_property
    def bytes_train(self) -> int:
        return self._bytes("train")

    @cached_property
    def bytes_val(self) -> int:
        return self._bytes("val")

    @cached_property
    def documents_train(self) -> int:
        return self._documents("train")

    @cached_property
    def documents_val(self) -> int:
        return self._documents("val")

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about this corpus, one sentence each."""
        return tuple(map(str, self.manifest.get("notes", ())))

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "vocab": self.vocab,
            "tokenizer": self.tokenizer.kind,
            "train": {"documents": self.documents_train, "bytes": self.bytes_train, "tokens": len(self.train)},
            "val": {"documents": self.documents_val, "bytes": self.bytes_val, "tokens": len(self.val)},
            "digest": self.manifest.get("digest"),
            "cached": self.cached,
            "notes": list(self.notes),
        }

    def bytes_of(self, targets: npt.NDArray[Any], previous: npt.NDArray[Any]) -> int:  # [N], [N] -> bytes
        """Number of text bytes of the targets, given the token before each."""
        return bytes_of(self.tokenizer, targets, previous)

    def _bytes(self, split: str) -> int:
        if split in self.manifest:
            bytes_of_split: int = self.manifest[split]["bytes"]
            return bytes_of_split
        total, last = 0, self.boundary
        for chunk in getattr(self, split).chunks():
            total += self.bytes_of(chunk, np.concatenate(([last], chunk[:-1])))
            last = int(chunk[-1])
        return total

    def _documents(self, split: str) -> int:
        if split in self.manifest:
            documents: int = self.manifest[split]["documents"]
            return documents
        return sum(int((chunk == self.boundary).sum()) for chunk in getattr(self, split).chunks())


def is_corpus(path: str | os.PathLike[str]) -> bool:
    """Whether a directory holds token shards, ours or parameter-golf's."""
    directory = Path(path).expanduser()
    return directory.is_dir() and ((directory / MANIFEST).is_file() or bool(_shards(directory, "train")))


def open_corpus(
    path: str | os.PathLike[str], tokenizer: str | os.PathLike[str] | None = None, boundary: str | None = None
) -> Corpus:
    """Open a corpus built earlier, or any directory of token shards together with its tokenizer."""
    directory = Path(path).expanduser()
    if (directory / MANIFEST).is_file():
        return open_built(directory, read_manifest(directory))
    files = {split: _shards(directory, split) for split in ("train", "val")}
    for split, found in files.items():
        if not found:
            raise UnreadableInput(f"{directory} has no *{split}_*.bin shards and no {MANIFEST}; it is not a corpus")
    if tokenizer is None:
        models = [*directory.glob("tokenizer.json"), *sorted(directory.glob("*.model"))]
        if len(models) != 1:
            raise BadRequest(
                f"{directory} has {len(models)} tokenizers; set tokenizer to the one its tokens were made with"
            )
        tokenizer = models[0]
    text = open_tokenizer(tokenizer, boundary)
    return Corpus(directory, text, _stream(files["train"], text.vocab), _stream(files["val"], text.vocab))


def open_built(directory: Path, manifest: dict[str, Any], cached: bool = False) -> Corpus:
    """Open a directory with a manifest and check every shard against it."""
    try:
        about = manifest["tokenizer"]
        tokenizer = open_tokenizer(_member(directory, about["file"]), about["boundary"])
        streams = {}
        for split in ("train", "val"):
            files = [_member(directory, shard["file"]) for shard in manifest[split]["shards"]]
            streams[split] = _stream(files, tokenizer.vocab)
            if len(streams[split]) != manifest[split]["tokens"]:
                raise UnreadableInput(
                    f"{directory} declares {manifest[split]['tokens']:,} {split} tokens but its shards have "
                    f"{len(streams[split]):,}; delete the directory and build it again"
                )
        for count in (manifest[split][field] for split in ("train", "val") for field in ("bytes", "documents")):
            if type(count) is not int or not 0 <= count < 1 << 63:
                raise ValueError(count)
        if not isinstance(manifest.get("notes", []), list):
            raise TypeError("notes")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableInput(
            f"{directory / MANIFEST} is damaged ({repr(error)[:100]}); delete the directory and build it again"
        ) from None
    return Corpus(directory, tokenizer, streams["train"], streams["val"], cached, manifest)


def _member(directory: Path, name: str) -> Path:
    """The file that the manifest names, in the directory; the name will be part of messages."""
    if not name.isprintable():
        raise ValueError(name)
    return directory / Path(name).name


def read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    try:
        if path.stat().st_size > MAX_CORPUS_MANIFEST:
            raise UnreadableInput(f"{path} exceeds the limit of {MAX_CORPUS_MANIFEST >> 20} MB; refusing to read")
        manifest = parse_json(path.read_bytes(), str(path))
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {error.strerror or error}") from None
    if manifest.get("format") != FORMAT:
        raise UnreadableInput(f"{path} is not the manifest of a corpus that this version can read ({FORMAT})")
    return manifest


def _shards(directory: Path, split: str) -> list[Path]:
    return sorted(path for path in directory.glob("*.bin") if f"_{split}_" in f"_{path.name}")


def _stream(files: list[Path], vocab: int) -> TokenStream:
    name = f"{files[0]} and {len(files) - 1} more" if len(files) > 1 else str(files[0]) if files else "no shards"
    return TokenStream([open_shard(path) for path in files], vocab, name)
