"""Text <-> token ids. The tokenizer is tokenizer.json beside the weights, or the one inside a GGUF.

Both are run by the `tokenizers` package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.json_files import read_json
from tiebeam.errors import TiebeamError, UnreadableInput, reader
from tiebeam.limits import MAX_TOKENIZER

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer and the special ids of its model.

    `stop_ids` are the end-of-text ids. `start` are the ids put before a text; None: the backend adds its own.
    """

    backend: tokenizers.Tokenizer
    stop_ids: frozenset[int] = frozenset()
    start: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        with explaining_failure("the text cannot be turned into tokens"):
            ids = self.backend.encode(text, add_special_tokens=self.start is None).ids
        return [*(self.start or ()), *ids]

    def encode_with_bytes(self, text: str) -> tuple[list[int], int]:
        """The ids, and how many bytes of the text the first of them covers (0 for a start token)."""
        with explaining_failure("the text cannot be turned into tokens"):
            encoding = self.backend.encode(text, add_special_tokens=self.start is None)
        if self.start:
            return [*self.start, *encoding.ids], 0
        first = encoding.offsets[0][1] if encoding.offsets and not encoding.special_tokens_mask[0] else 0
        return list(encoding.ids), len(text[:first].encode())

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special))

    def stream(self, prompt: Sequence[int]) -> Callable[..., str]:
        """A function from each next id to the text that it completes.

        Each id is decoded together with a few before it, because leading spaces and characters that span several
        tokens depend on them.
        """
        ids = list(prompt[-8:])
        seen, shown = 0, len(ids)
        while shown and self.decode(ids[:shown]).endswith("�"):
            shown -= 1  # the prompt stops inside a character

        def push(token: int, last: bool = False) -> str:
            nonlocal seen, shown
            ids.append(token)
            before, now = self.decode(ids[seen:shown]), self.decode(ids[seen:])
            if now.endswith("�") and not last:
                return ""
            seen, shown = shown, len(ids)
            return now[len(before) :]

        return push


@contextmanager
def explaining_failure(what: str) -> Iterator[None]:
    """Turn a failure of the tokenizers package into UnreadableInput. It raises bare exceptions and Rust panics."""
    try:
        yield
    except (TiebeamError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise UnreadableInput(f"{what}: {' '.join(str(error).split())}") from None


@reader
def open_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """The tokenizer of a checkpoint; None when it has none.

    from tiebeam import open_checkpoint
    tokenizer = open_tokenizer(open_checkpoint("model"))
    """
    if checkpoint.format == "gguf" and "tokenizer.ggml.model" in checkpoint.metadata:
        from tiebeam.tokenizer.gguf import rebuild

        return rebuild(checkpoint.metadata, checkpoint.source)
    names = checkpoint.files.names()
    if "tokenizer.json" not in names:
        return None
    import tokenizers

    size = checkpoint.files.size("tokenizer.json")
    if size > MAX_TOKENIZER:
        raise UnreadableInput(f"tokenizer.json is {size:,} bytes; it exceeds the limit of {MAX_TOKENIZER:,} bytes")
    raw = checkpoint.files.read("tokenizer.json", 0, size)
    with explaining_failure("tokenizer.json cannot be read"):
        backend = tokenizers.Tokenizer.from_buffer(raw)
    backend.no_padding()
    backend.no_truncation()
    return Tokenizer(backend, _stop_ids(checkpoint, names))


def _stop_ids(checkpoint: Checkpoint, names: list[str]) -> frozenset[int]:
    """End-of-text ids from generation_config.json, else from config.json."""
    documents: list[Any] = []
    if "generation_config.json" in names:
        documents.append(read_json(checkpoint.files, "generation_config.json", checkpoint.source))
    documents.append(checkpoint.config or {})
    for document in documents:
        found = document.get("eos_token_id")
        ids = found if isinstance(found, list) else [found]
        ids = [i for i in ids if type(i) is int]
        if ids:
            return frozenset(ids)
    return frozenset()
