"""A corpus on disk: a directory with corpus.json, a tokenizer, and the shards of two splits.

corpus.json is written last and the directory is renamed into place, so a directory that has one is whole. A
directory of shards that someone else made (parameter-golf's fineweb_train_*.bin, fineweb_val_*.bin) is a corpus too,
once it is told its tokenizer; its bytes are then counted from the tokens.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tiebeam.corpus.shards import TokenStream, open_shard
from tiebeam.corpus.training_tokenizer import Tokenizer, bytes_of, open_tokenizer
from tiebeam.errors import BadRequest, UnreadableInput

MANIFEST = "corpus.json"
FORMAT = "tiebeam corpus 1"
_LARGEST_MANIFEST = 16 << 20


def cache_directory() -> Path:
    """Where corpora are kept unless told otherwise: TIEBEAM_CACHE, else tiebeam/ in the user's cache directory."""
    own = os.environ.get("TIEBEAM_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "tiebeam"


def bits_per_byte(nats_per_token: float, tokens: int, bytes_of_text: int) -> float:
    """A mean loss over `tokens` targets that stand for `bytes_of_text` bytes, in bits per byte."""
    return nats_per_token / math.log(2) * tokens / bytes_of_text


@dataclass(frozen=True)
class Corpus:
    """Two token streams, the tokenizer that made them, and the bytes they stand for.

    A boundary token opens every document, so all tokens of the text are targets of the stream: the loss over
    len(val) - 1 targets, times that many, over bytes_val, is the loss per byte of the held-out text.
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
        """What whoever built this should know, a sentence each."""
        return tuple(self.manifest.get("notes", ()))

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
        """How many bytes of text some targets stand for, each after its previous token."""
        return bytes_of(self.tokenizer, targets, previous)

    def _bytes(self, split: str) -> int:
        if split in self.manifest:
            return int(self.manifest[split]["bytes"])
        total, last = 0, self.boundary
        for chunk in getattr(self, split).chunks():
            total += self.bytes_of(chunk, np.concatenate(([last], chunk[:-1])))
            last = int(chunk[-1])
        return total

    def _documents(self, split: str) -> int:
        if split in self.manifest:
            return int(self.manifest[split]["documents"])
        return sum(int((chunk == self.boundary).sum()) for chunk in getattr(self, split).chunks())


def is_corpus(path: str | os.PathLike[str]) -> bool:
    """Whether a directory holds tokens already, ours or parameter-golf's."""
    place = Path(path).expanduser()
    return place.is_dir() and ((place / MANIFEST).is_file() or bool(_shards(place, "train")))


def open_corpus(
    path: str | os.PathLike[str], tokenizer: str | os.PathLike[str] | None = None, boundary: str | None = None
) -> Corpus:
    """A corpus built earlier, or any directory of token shards together with its tokenizer."""
    place = Path(path).expanduser()
    if (place / MANIFEST).is_file():
        return open_built(place, read_manifest(place))
    files = {split: _shards(place, split) for split in ("train", "val")}
    for split, found in files.items():
        if not found:
            raise UnreadableInput(f"{place} holds no *{split}_*.bin shards and no {MANIFEST}; it is not a corpus")
    if tokenizer is None:
        models = [*place.glob("tokenizer.json"), *sorted(place.glob("*.model"))]
        if len(models) != 1:
            raise BadRequest(f"{place} holds {len(models)} tokenizers; name the one that its tokens were made with")
        tokenizer = models[0]
    text = open_tokenizer(tokenizer, boundary)
    return Corpus(place, text, _stream(files["train"], text.vocab), _stream(files["val"], text.vocab))


def open_built(place: Path, manifest: dict[str, Any], cached: bool = False) -> Corpus:
    """A directory with a manifest, every shard checked against it."""
    try:
        about = manifest["tokenizer"]
        tokenizer = open_tokenizer(place / Path(about["file"]).name, about["boundary"])
        streams = {}
        for split in ("train", "val"):
            files = [place / Path(shard["file"]).name for shard in manifest[split]["shards"]]
            streams[split] = _stream(files, tokenizer.vocab)
            if len(streams[split]) != manifest[split]["tokens"]:
                raise UnreadableInput(
                    f"{place} says {manifest[split]['tokens']:,} {split} tokens but its shards hold "
                    f"{len(streams[split]):,}; delete the directory and build it again"
                )
            int(manifest[split]["bytes"]), int(manifest[split]["documents"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableInput(
            f"{place / MANIFEST} is damaged ({error!r}); delete the directory and build it again"
        ) from None
    return Corpus(place, tokenizer, streams["train"], streams["val"], cached, manifest)


def read_manifest(place: Path) -> dict[str, Any]:
    path = place / MANIFEST
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise UnreadableInput(f"{path} is too large to be believed")
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path} is not valid JSON: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UnreadableInput(f"{path} is not the manifest of a corpus that this version can read ({FORMAT})")
    return manifest


def _shards(place: Path, split: str) -> list[Path]:
    return sorted(path for path in place.glob("*.bin") if f"_{split}_" in f"_{path.name}")


def _stream(files: list[Path], vocab: int) -> TokenStream:
    name = f"{files[0]} and its sisters" if len(files) > 1 else str(files[0]) if files else "no shards"
    return TokenStream([open_shard(path) for path in files], vocab, name)
