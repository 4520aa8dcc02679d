"""How well a decoder predicts a text, and how far one decoder is from another on it.

Long texts go through in windows of `context` tokens. By default windows follow one another and each token but
the first is scored once; a smaller `stride` lets every window begin with tokens that were already scored, which
gives them more to look back on and takes as much longer. Sums are float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tiebeam.decode.numpy.decoder import Decoder
from tiebeam.decode.numpy.ops import Array, Ids, log_softmax
from tiebeam.errors import BadRequest

WINDOW = 1024
_LOGITS = 1 << 23  # numbers in one block of logits


@dataclass(frozen=True, slots=True)
class Perplexity:
    """`bits_per_byte` and `bytes` are None for tokens that came without their text."""

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
    """`kl`: the mean of KL(before || after) in nats; `agreement`: how often both would take the same token."""

    kl: float
    agreement: float
    before: Perplexity
    after: Perplexity

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "before": self.before.to_dict(), "after": self.after.to_dict()}


def perplexity(
    decoder: Decoder, text: str | Sequence[int], *, context: int | None = None, stride: int | None = None
) -> Perplexity:
    """Nats per token over a text or tokens, and bits per byte over a text.

    The first token has nothing before it and is not scored, nor are its bytes counted; a start token is that first.
    """
    ids, nbytes = _tokens(decoder, text)
    total = 0.0
    for h, targets in windows(decoder, ids, context, stride):
        total += sum(float(_nll(decoder, h[rows], targets[rows]).sum()) for rows in _blocks(decoder, len(h)))
    return _summary(total, len(ids) - 1, nbytes)


def divergence(
    before: Decoder, after: Decoder, text: str | Sequence[int], *, context: int | None = None, stride: int | None = None
) -> Divergence:
    """Both decoders over the same text, tokenised by the first."""
    if before.vocab != after.vocab:
        raise BadRequest(f"vocabularies of {before.vocab:,} and {after.vocab:,} tokens cannot be compared")
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
    decoder: Decoder, ids: Ids, context: int | None = None, stride: int | None = None
) -> Iterator[tuple[Array, Ids]]:
    """(hidden states [t, D], the tokens [t] that come after each), window by window; every token but the first once."""
    context = min(WINDOW, decoder.spec.context) if context is None else context
    stride = context if stride is None else stride
    if not 1 <= context <= decoder.spec.context:
        raise BadRequest(f"a window of {context:,} does not fit the model's context of {decoder.spec.context:,}")
    if not 1 <= stride <= context:
        raise BadRequest(f"a stride of {stride:,} leaves gaps between windows of {context:,}; use 1 to {context:,}")
    begin, scored = 0, 1
    while scored < len(ids):
        end = min(begin + context, len(ids) - 1)
        h = decoder.hidden(ids[begin:end])
        skip = scored - (begin + 1)
        yield h[skip:], ids[scored : end + 1]
        scored = end + 1
        begin += stride


def _tokens(decoder: Decoder, text: str | Sequence[int]) -> tuple[Ids, int | None]:
    """The ids to score, and the bytes that they spell after the first."""
    nbytes = None
    if isinstance(text, str):
        decoder.encode(text[:1])  # the same refusals as for a prompt
        assert decoder.tokenizer is not None
        tokens, first = decoder.tokenizer.encode_with_bytes(text)
        nbytes = len(text.encode()) - first
    else:
        tokens = list(text)
    ids = decoder.check(tokens)
    if len(ids) < 2:
        raise BadRequest("one token has nothing to predict; give a longer text")
    return ids, nbytes


def _blocks(decoder: Decoder, rows: int) -> Iterator[slice]:
    """Rows whose logits fit in a small block."""
    step = max(1, _LOGITS // decoder.vocab)
    return (slice(start, start + step) for start in range(0, rows, step))


def _nll(decoder: Decoder, h: Array, targets: Ids) -> Array:  # [t, D], [t] -> [t]
    logits = decoder.unembed(h)  # [t, V]
    right = logits[np.arange(len(h)), targets].astype(np.float64)
    top = np.maximum.reduce(logits, axis=1, keepdims=True)
    logits -= top
    np.exp(logits, out=logits)
    nll: Array = np.log(logits.sum(axis=1, dtype=np.float64)) + top[:, 0] - right
    return nll


def _summary(nats: float, tokens: int, nbytes: int | None) -> Perplexity:
    bits = nats / math.log(2) / nbytes if nbytes else None
    return Perplexity(nats / tokens, bits, tokens, nbytes)
