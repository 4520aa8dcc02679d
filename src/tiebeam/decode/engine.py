"""Engines that run a checkpoint, behind one interface: tokens in; hidden states, logits and text out.

`numpy` (`tiebeam.decode.numpy`) is built in and runs the families it knows. `transformers` (extra [hf]) runs every
architecture that transformers has as a causal language model, on any device. `open_engine` takes the first that can
run the model.

    engine = open_engine("org/model")
    engine.logits([1, 2, 3])                        # [3, V]
    engine.perplexity("It was a dark night.")       # nats per token, bits per byte
    "".join(token.text for token in engine.generate("Once upon a time", 32))
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.decode.numpy.runnable import model_config, spec_of
from tiebeam.decode.numpy.vocab_tables import Table
from tiebeam.decode.sampling import Sampling
from tiebeam.errors import BadRequest, MissingExtra, UnreadableInput, reader
from tiebeam.families import Scales

if TYPE_CHECKING:
    from tiebeam.decode.numpy.decoder import Token
    from tiebeam.decode.perplexity import Perplexity
    from tiebeam.decode.transformers import Converted
    from tiebeam.tokenizer import Tokenizer

Array = NDArray[Any]
Ids = NDArray[np.int64]
Tokens = Sequence[int] | NDArray[np.integer]
ENGINES = ("auto", "numpy", "transformers")


class Sizes(Protocol):
    """`context` in tokens, the width `dim` of the hidden states, and the family's scales."""

    @property
    def context(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def scales(self) -> Scales: ...


class Engine(Protocol):
    """A checkpoint that can be run. Get one from `open_engine`."""

    @property
    def source(self) -> str: ...
    @property
    def spec(self) -> Sizes: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def embed(self) -> Table: ...
    @property
    def head(self) -> Table: ...
    @property
    def vocab(self) -> int: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...
    @property
    def speller(self) -> Tokenizer | None: ...

    def cache(self, capacity: int | None = None) -> Any:
        """An empty key/value cache for `capacity` positions (default: the whole context)."""

    def forward(self, tokens: Tokens, cache: Any) -> Array:  # [T] -> [T, D]
        """Run new tokens after those in the cache. Returns the final hidden states, as the head sees them."""

    def unembed(self, h: Array) -> Array:  # [T, D] -> [T, V]
        """Logits of hidden states."""

    def hidden(self, tokens: Tokens) -> Array:  # [T] -> [T, D]
        """The final hidden states over a sequence, as the head sees them."""

    def logits(self, tokens: Tokens) -> Array:  # [T] -> [T, V]
        """The logits at every position of a sequence."""

    def generate(
        self, prompt: str | Tokens, n: int = 64, *, sampling: Sampling | None = None, stop: bool = True
    ) -> Iterator[Token]:
        """Up to `n` tokens after the prompt. `stop`: end at the model's end-of-text token."""

    def perplexity(self, text: str | Tokens, *, context: int | None = None, stride: int | None = None) -> Perplexity:
        """Nats per token over a text or tokens, and bits per byte over a text."""

    def encode(self, text: str) -> list[int]:
        """Text -> token ids, with the start token where the tokenizer adds one."""

    def check(self, tokens: Tokens) -> Ids:
        """Token ids as an array; raises BadRequest for an id outside the vocabulary."""

    def with_tables(self, embed: Table, head: Table) -> Engine:
        """The same layers with another embedding and head."""


class EngineBase(ABC):
    """The part of an engine that does not depend on what runs the layers."""

    source: str
    spec: Sizes
    notes: tuple[str, ...]
    checkpoint: Checkpoint | None

    if TYPE_CHECKING:  # fields of one engine, computed on first use by the other

        @property
        @abstractmethod
        def embed(self) -> Table: ...

        @property
        @abstractmethod
        def head(self) -> Table: ...

    @property
    @abstractmethod
    def vocab(self) -> int: ...

    @abstractmethod
    def cache(self, capacity: int | None = None) -> Any: ...

    @abstractmethod
    def forward(self, tokens: Tokens, cache: Any) -> Array: ...  # [T] -> [T, D]

    @abstractmethod
    def unembed(self, h: Array) -> Array: ...  # [T, D] -> [T, V]

    @abstractmethod
    def with_tables(self, embed: Table, head: Table) -> Engine: ...

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the checkpoint, if it has one."""
        from tiebeam.tokenizer import open_tokenizer

        return open_tokenizer(self.checkpoint) if self.checkpoint else None

    @cached_property
    def speller(self) -> Tokenizer | None:
        """The tokenizer, or None where it cannot be built: the model still runs on token ids."""
        try:
            return self.tokenizer
        except UnreadableInput:
            return None

    def hidden(self, tokens: Tokens) -> Array:  # [T] -> [T, D]
        self._check_length(len(tokens))
        return self.forward(tokens, self.cache(len(tokens)))

    def logits(self, tokens: Tokens) -> Array:  # [T] -> [T, V]
        return self.unembed(self.hidden(tokens))

    def generate(
        self, prompt: str | Tokens, n: int = 64, *, sampling: Sampling | None = None, stop: bool = True
    ) -> Iterator[Token]:
        tokens = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if n < 0:
            raise BadRequest(f"n must be 0 or more, not {n}")
        self.check(tokens)
        self._check_length(len(tokens), n)
        return self._generate(tokens, n, sampling or Sampling(), stop)

    def _generate(self, tokens: list[int], n: int, sampling: Sampling, stop: bool) -> Iterator[Token]:
        from tiebeam.decode.numpy.decoder import Token

        tokenizer = self.speller
        stream = tokenizer.stream(tokens) if tokenizer else None
        stop_ids = tokenizer.stop_ids if tokenizer and stop else frozenset()
        choices = min(self.vocab, tokenizer.size) if tokenizer else self.vocab  # rows of padding have no text
        random, cache = sampling.generator(), self.cache(len(tokens) + n)
        new = tokens
        for made in range(n):
            h = self.forward(new, cache)[-1:]  # [1, D]
            token = sampling.choose(self.unembed(h)[0, :choices], random)
            if token in stop_ids:
                return
            yield Token(token, stream(token, last=made == n - 1) if stream else "")
            new = [token]

    def perplexity(self, text: str | Tokens, *, context: int | None = None, stride: int | None = None) -> Perplexity:
        from tiebeam.decode.perplexity import perplexity

        return perplexity(self, text, context=context, stride=stride)

    def encode(self, text: str) -> list[int]:
        if not text:
            raise BadRequest("the prompt is empty; give some text, or token ids")
        if self.tokenizer is None:
            raise UnreadableInput(f"{self.source} has no tokenizer; give token ids instead of text")
        return self.tokenizer.encode(text)

    def check(self, tokens: Tokens) -> Ids:
        ids = np.asarray(tokens)
        if ids.size == 0:
            raise BadRequest("there are no tokens to run; give at least one")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise BadRequest("tokens must be a list of whole numbers")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.embed.vocab:
            wrong = low if low < 0 else high
            raise BadRequest(f"token id {wrong:,} is outside the vocabulary of {self.embed.vocab:,}")
        return ids.astype(np.int64)

    def _check_length(self, prompt: int, new: int = 0) -> None:
        context = self.spec.context
        if prompt + new <= context:
            return
        if prompt >= context or not new:
            raise BadRequest(f"{prompt:,} tokens are more than the model's context of {context:,}; shorten the text")
        raise BadRequest(
            f"{prompt:,} tokens of prompt and {new:,} new ones are more than the model's context of {context:,}; "
            f"ask for at most {context - prompt:,}"
        )


@reader
def open_engine(
    source: str | os.PathLike[str] | Checkpoint,
    *,
    engine: str = "auto",
    device: str | None = None,
    embed: str | None = None,
    head: str | None = None,
    dtype: str = "float32",
    progress: Callable[[int, int], None] = lambda done, total: None,
    converted: Converted | None = None,
) -> Engine:
    """Open a model to run it.

    `engine`: "numpy", "transformers", or "auto": numpy where it can run the model, else transformers. `device` is a
    torch device such as "cuda"; anything but "cpu" needs transformers. `embed` and `head` name the tensors of the
    vocabulary pair where they are not under the family's names. `dtype` is the type of the weights: numpy rounds
    them to a 16-bit type and computes in float32, transformers holds them in it and computes in it. `progress` is
    called with (layers read, layers). `converted` is what transformers gets in place of a format that it does not read.
    """
    if engine not in ENGINES:
        raise BadRequest(f"engine={engine!r} is not one of {', '.join(ENGINES)}")
    from tiebeam.decode.numpy.decoder import Decoder

    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    on_cpu = device is None or device == "cpu"
    if engine == "numpy" and not on_cpu:
        raise BadRequest(f'the numpy engine has no device {device!r}; use engine="transformers"')
    why_not = None if engine == "numpy" else _why_not_numpy(checkpoint)
    if engine == "numpy" or (engine == "auto" and on_cpu and why_not is None):
        return Decoder.open(checkpoint, embed=embed, head=head, dtype=dtype, progress=progress)
    from tiebeam.decode.transformers import TransformersEngine

    progress(0, 1)
    try:
        return TransformersEngine.open(
            checkpoint, device=device or "cpu", embed=embed, head=head, dtype=dtype, converted=converted
        )
    except MissingExtra:
        if engine == "auto" and why_not:
            raise MissingExtra(f"{why_not}; the transformers engine, which may run it,", "hf") from None
        raise
    except UnreadableInput as error:
        if engine == "auto" and why_not:
            raise UnreadableInput(f"{why_not}; transformers cannot run it either: {error}") from None
        raise


def engine_name(engine: Engine) -> str:
    """ "numpy" or "transformers"."""
    from tiebeam.decode.numpy.decoder import Decoder

    return "numpy" if isinstance(engine, Decoder) else "transformers"


def _why_not_numpy(checkpoint: Checkpoint) -> str | None:
    """Why the numpy engine cannot run this architecture; None when it can."""
    config, where = model_config(checkpoint)
    try:
        spec_of(config, where)
    except UnreadableInput as error:
        return str(error)
    return None
