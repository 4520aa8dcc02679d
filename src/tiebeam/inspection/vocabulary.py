"""The vocabulary of a checkpoint: four numbers that must agree, and the special ids of its configs.

Tokenizer ids (the highest + 1), the declared vocab_size, the rows of the embedding, the rows of the LM head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tiebeam import families
from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.json_files import read_json
from tiebeam.errors import UnreadableInput
from tiebeam.families.config_levels import config_levels
from tiebeam.tokenizer.id_range import TokenIds, token_ids

_SIZE_KEYS = ("vocab_size", "padded_vocab_size", "n_vocab", "decoder_vocab_size")
_SPECIAL = (
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id",
    "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """None: not known or not there. The head of a tied model has the rows of the embedding."""

    tokenizer_ids: int | None = None
    vocab_size: int | None = None
    embed_rows: int | None = None
    head_rows: int | None = None
    tokens: TokenIds | None = field(default=None, repr=False)
    extra_rows: int = 0
    """Rows of a second table for added tokens (Idefics' additional_vocab_size)."""

    @property
    def rows(self) -> int | None:
        """The rows of the embedding; of the head, if only that is stored."""
        return self.embed_rows if self.embed_rows is not None else self.head_rows

    @property
    def padding(self) -> int:
        """Rows that no token of the tokenizer has."""
        if self.tokenizer_ids is None or self.rows is None:
            return 0
        return max(0, self.rows - self.tokenizer_ids)

    def __str__(self) -> str:
        numbers = {
            "tokenizer": self.tokenizer_ids,
            "vocab_size": self.vocab_size,
            "embedding": self.embed_rows,
            "head": self.head_rows,
        }
        return " · ".join(f"{name} {'-' if n is None else format(n, ',')}" for name, n in numbers.items())

    def to_dict(self) -> dict[str, int | None]:
        return {
            "tokenizer_ids": self.tokenizer_ids,
            "vocab_size": self.vocab_size,
            "embed_rows": self.embed_rows,
            "head_rows": self.head_rows,
            "padding_rows": self.padding,
        }


class SpecialId(NamedTuple):
    """A token id that a config names: the file, the path of the key, the id."""

    file: str
    key: str
    token: int

    def __str__(self) -> str:
        return f"{self.file}: {self.key} = {self.token:,}"


def read_vocabulary(
    checkpoint: Checkpoint, embed_rows: int | None, head_rows: int | None
) -> tuple[Vocabulary, list[str]]:
    """The four numbers, and notes on files that cannot be read."""
    notes: list[str] = []
    tokens = None
    try:
        tokens = token_ids(checkpoint)
    except UnreadableInput as error:
        notes.append(f"the tokenizer was not read: {error}")
    extra = (checkpoint.config or {}).get("additional_vocab_size")
    return (
        Vocabulary(
            tokenizer_ids=tokens.size if tokens else None,
            vocab_size=declared_size(checkpoint),
            embed_rows=embed_rows,
            head_rows=head_rows,
            tokens=tokens,
            extra_rows=extra if type(extra) is int and extra > 0 else 0,
        ),
        notes,
    )


def declared_size(checkpoint: Checkpoint) -> int | None:
    """vocab_size of config.json, or of a GGUF's metadata."""
    if checkpoint.format == "gguf":
        size = checkpoint.metadata.get(f"{checkpoint.architecture}.vocab_size")
        return size if type(size) is int else None
    return families.vocabulary(checkpoint.config, families.lookup(checkpoint.architecture))


def size_paths(checkpoint: Checkpoint, declared: int) -> tuple[tuple[str, ...], ...]:
    """The path of every key of config.json that declares the vocabulary as `declared`."""
    architecture = families.lookup(checkpoint.architecture)
    keys = dict.fromkeys((*(architecture.vocab_keys if architecture else ()), *_SIZE_KEYS))
    levels = config_levels(checkpoint.config or {})
    return tuple((*path, key) for path, level in levels for key in keys if level.get(key) == declared)


def special_ids(checkpoint: Checkpoint) -> Iterator[SpecialId]:
    """Every special id in config.json, at each level of the language model, and in generation_config.json.

    A negative id is a way to say that there is none; transformers 4 wrote pad_token_id -1.
    """
    for path, level in config_levels(checkpoint.config or {}):
        yield from _ids(checkpoint.config_name, level, path)
    name = "generation_config.json"
    if checkpoint.format not in ("gguf", "module") and name in checkpoint.files.names():
        try:
            yield from _ids(name, read_json(checkpoint.files, name))
        except UnreadableInput:
            return  # not the doctor's file to judge: loaders name it themselves
    if checkpoint.format == "gguf":
        prefix = "tokenizer.ggml."
        for key, value in checkpoint.metadata.items():
            if key.startswith(prefix) and key.endswith("_token_id") and type(value) is int:
                yield SpecialId("metadata", key, value)


def _ids(file: str, level: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[SpecialId]:
    for key in _SPECIAL:
        value = level.get(key)
        for token in value if isinstance(value, list) else [value]:
            if type(token) is int and token >= 0:
                yield SpecialId(file, ".".join((*path, key)), token)
    pairs = level.get("forced_decoder_ids")
    for entry in pairs if isinstance(pairs, list) else []:
        if isinstance(entry, list) and len(entry) == 2 and type(entry[1]) is int and entry[1] >= 0:
            yield SpecialId(file, ".".join((*path, "forced_decoder_ids")), entry[1])
