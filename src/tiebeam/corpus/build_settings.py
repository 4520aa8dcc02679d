"""Settings of a corpus build: everything besides the text that decides the resulting tokens."""

from __future__ import annotations

from dataclasses import dataclass

from tiebeam.corpus.training_tokenizer import MIN_VOCAB
from tiebeam.errors import BadRequest


@dataclass(frozen=True)
class CorpusSettings:
    vocab: int
    tokenizer: str | None  # SHA-256 of a given tokenizer's file
    boundary: str | None
    val_fraction: float
    max_bytes: int | None
    text_field: str
    tokenizer_bytes: int
    shard_tokens: int

    def __post_init__(self) -> None:
        if self.tokenizer is None and self.vocab < MIN_VOCAB:
            raise BadRequest(
                f"vocab={self.vocab} is too small; use at least {MIN_VOCAB}: 256 bytes and a boundary token"
            )
        if not 0 < self.val_fraction < 1:
            raise BadRequest(f"val_fraction={self.val_fraction} is not between 0 and 1; use for instance 0.05")
        if self.max_bytes is not None and self.max_bytes < 2:
            raise BadRequest(f"max_bytes={self.max_bytes} is too small for a train and a validation split; raise it")
