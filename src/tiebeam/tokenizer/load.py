"""Text <-> tokens: the tokenizer.json beside a checkpoint, or the tokenizer inside a GGUF, both run by `tokenizers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.json_files import read_json
from tiebeam.errors import TiebeamError, UnreadableInput

if TYPE_CHECKING:
    import tokenizers

_LIMIT = 256 << 20  # the largest tokenizer.json in use is some 35 MB


@dataclass(frozen=True)
class Tokenizer:
    """`ends` are the ids at which text is complete; `start` is put before a text (None: the backend sees to it)."""

    backend: tokenizers.Tokenizer
    ends: frozenset[int] = frozenset()
    start: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        with told("the text cannot be turned into tokens"):
            ids = self.backend.encode(text, add_special_tokens=self.start is None).ids
        return [*(self.start or ()), *ids]

    def encode_with_bytes(self, text: str) -> tuple[list[int], int]:
        """The tokens, and how many bytes of the text belong to the first of them (0 when it is a start token)."""
        with told("the text cannot be turned into tokens"):
            encoding = self.backend.encode(text, add_special_tokens=self.start is None)
        if self.start:
            return [*self.start, *encoding.ids], 0
        first = encoding.offsets[0][1] if encoding.offsets and not encoding.special_tokens_mask[0] else 0
        return list(encoding.ids), len(text[:first].encode())

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special))

    def stream(self, prompt: Sequence[int]) -> Callable[..., str]:
        """A function from each next token to the text that it completes.

        Decoded together with a few tokens before it: leading spaces and characters of several tokens depend on them.
        """
        ids = list(prompt[-8:])
        seen, shown = 0, len(ids)
        while shown and self.decode(ids[:shown]).endswith("�"):
            shown -= 1  # the prompt ends inside a character, which is not text yet

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
def told(what: str) -> Iterator[None]:
    """Whatever the tokenizers package makes of bad data, as one sentence: it raises bare exceptions, and panics."""
    try:
        yield
    except (TiebeamError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise UnreadableInput(f"{what}: {' '.join(str(error).split())}") from None


def open_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """The checkpoint's own tokenizer, or None when it carries none."""
    if checkpoint.format == "gguf" and "tokenizer.ggml.model" in checkpoint.metadata:
        from tiebeam.tokenizer.gguf import build

        return build(checkpoint.metadata, checkpoint.source)
    names = checkpoint.files.names()
    if "tokenizer.json" not in names:
        return None
    import tokenizers

    size = checkpoint.files.size("tokenizer.json")
    if size > _LIMIT:
        raise UnreadableInput(f"tokenizer.json is {size:,} bytes; one above {_LIMIT:,} is not believed")
    raw = checkpoint.files.read("tokenizer.json", 0, size)
    with told("tokenizer.json cannot be read"):
        backend = tokenizers.Tokenizer.from_buffer(raw)
    backend.no_padding()
    backend.no_truncation()
    return Tokenizer(backend, _ends(checkpoint, names))


def _ends(checkpoint: Checkpoint, names: list[str]) -> frozenset[int]:
    """End-of-text ids: what generation_config.json says, else config.json."""
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
