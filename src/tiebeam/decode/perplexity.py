"""Perplexity of a model on a text, and the KL divergence between two models on it.

A long text is run in windows of `context` tokens. By default the windows do not overlap. A smaller `stride` makes
them overlap: every scored token then has more context, and the run takes longer in proportion. Every token but the
first is scored once. Sums are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tiebeam.decode.engine import Engine, Tokens
from tiebeam.decode.numpy.ops import Array, Ids, log_softmax
from tiebeam.errors import BadRequest

WINDOW = 1024
_LOGITS = 1 << 23  # elements in one block of logits


@dataclass(frozen=True, slots=True)
class Perplexity:
    """`bits_per_byte` and `bytes` are None when the input was token ids."""

    nats_per_token: float
    bits_per_byte: float | None
    tokens: int
    bytes: int | None

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats_per_token)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "perplexity": self.perplexity}


@dataclass(frozen=True, slots=True)
class Divergence:
    """`kl`: mean KL(before || after) in nats per token. `agreement`: share of positions with the same top token."""

    kl: float
    agreement: float
    before: Perplexity
    after: Perplexity

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "before": self.before.to_dict(), "after": self.after.to_dict()}


def perplexity(
    engine: Engine, text: str | Tokens, *, context: int | None = None, stride: int | None = None
) -> Perplexity:
    """Nats per token over a text or token ids, and bits per byte over a text.

    The first token has no context, so it is not scored and its bytes are not counted. With a start token, that is
    the first.

        perplexity(open_engine("model"), "It was a dark and stormy night.").bits_per_byte
    """
    ids, nbytes = _tokens(engine, text)
    total = 0.0
    for h, targets in windows(engine, ids, context, stride):
        total += sum(float(_nll(engine.unembed(h[at]), targets[at]).sum()) for at in _blocks(engine, len(h)))
    return _summary(total, len(ids) - 1, nbytes)


def nats_among_rows(
    engine: Engine, ids: Ids, rows: Ids, progress: Callable[[int], None] = lambda tokens: None
) -> float:
    """The loss over `ids` in nats, all tokens together, if the head had only the rows `rows`, which ascend.

    `progress` is called with the number of tokens that each window has added.
    """
    from tiebeam.decode.engine import engine_name
    from tiebeam.decode.numpy.vocab_tables import Table

    head = engine
    whole = engine_name(engine) != "numpy"  # a head of transformers may have a bias of the old size
    if not whole:
        head = engine.with_tables(engine.embed, Table(engine.head.lookup(rows)))
    total = 0.0
    for h, targets in windows(engine, ids):
        right = np.searchsorted(rows, targets)
        for at in _blocks(engine, len(h)):
            logits = head.unembed(h[at])
            total += float(_nll(logits[:, rows] if whole else logits, right[at]).sum())
        progress(len(h))
    return total


def divergence(
    before: Engine, after: Engine, text: str | Tokens, *, context: int | None = None, stride: int | None = None
) -> Divergence:
    """Both decoders over the same text, tokenised by the first."""
    if before.vocab != after.vocab:
        raise BadRequest(f"a vocabulary of {before.vocab:,} tokens cannot be compared with one of {after.vocab:,}")
    ids, nbytes = _tokens(before, text)
    kl = agree = nats_before = nats_after = 0.0
    both = zip(windows(before, ids, context, stride), windows(after, ids, context, stride), strict=True)
    for (h, targets), (g, _) in both:
        for rows in _blocks(before, len(h)):
            p, q = log_softmax(before.unembed(h[rows])), log_softmax(after.unembed(g[rows]))  # [t, V], [t, V]
            at = np.arange(len(p)), targets[rows]
            kl += float(np.einsum("tv,tv->", np.exp(p), p - q))
            agree += int((p.argmax(1) == q.argmax(1)).sum())
            nats_before -= float(p[at].sum())
            nats_after -= float(q[at].sum())
    count = len(ids) - 1
    return Divergence(
        kl / count, agree / count, _summary(nats_before, count, nbytes), _summary(nats_after, count, nbytes)
    )


def windows(
    engine: Engine, ids: Ids, context: int | None = None, stride: int | None = None
) -> Iterator[tuple[Array, Ids]]:
    """(hidden states [t, D], target tokens [t]) of each window. Every token but the first is a target once."""
    context = min(WINDOW, engine.spec.context) if context is None else context
    stride = context if stride is None else stride
    if not 1 <= context <= engine.spec.context:
        raise BadRequest(f"context={context:,} is outside 1 to {engine.spec.context:,}, the model's context")
    if not 1 <= stride <= context:
        raise BadRequest(f"stride={stride:,} is outside 1 to {context:,}, the context")
    begin, scored = 0, 1
    while scored < len(ids):
        end = min(begin + context, len(ids) - 1)
        h = engine.hidden(ids[begin:end])
        skip = scored - (begin + 1)
        yield h[skip:], ids[scored : end + 1]
        scored = end + 1
        begin += stride


def _tokens(engine: Engine, text: str | Tokens) -> tuple[Ids, int | None]:
    """The ids to score, and how many bytes of text they cover after the first."""
    nbytes = None
    if isinstance(text, str):
        engine.encode(text[:1])  # the same errors as for a prompt
        assert engine.tokenizer is not None
        tokens, first = engine.tokenizer.encode_with_bytes(text)
        nbytes = len(text.encode()) - first
    else:
        tokens = list(text)
    ids = engine.check(tokens)
    if len(ids) < 2:
        raise BadRequest("a text of one token has nothing to predict; give a longer text")
    return ids, nbytes


def _blocks(engine: Engine, rows: int) -> Iterator[slice]:
    """Slices of rows whose logits fit in one block."""
    step = max(1, _LOGITS // engine.vocab)
    return (slice(start, start + step) for start in range(0, rows, step))


def _nll(logits: Array, targets: Ids) -> Array:  # [t, V], [t] -> [t]
    """Overwrites the logits."""
    right = logits[np.arange(len(logits)), targets].astype(np.float64)
    top = np.maximum.reduce(logits, axis=1, keepdims=True)
    logits -= top
    np.exp(logits, out=logits)
    nll: Array = np.log(logits.sum(axis=1, dtype=np.float64)) + top[:, 0] - right
    return nll


def _summary(nats: float, tokens: int, nbytes: int | None) -> Perplexity:
    bits = nats / math.log(2) / nbytes if nbytes else None
    return Perplexity(nats / tokens, bits, tokens, nbytes)
