"""The loss of every held-out target, and what follows from having them all: who pays, and how sure it is.

The same targets in the same order for every variant, so differences are paired, document by document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.nn import GPT

Losses = NDArray[np.float32]  # [N], nats
BANDS = 5


@dataclass(frozen=True, slots=True)
class Band:
    """Tokens of one range of frequency: together about a fifth of all that is written."""

    tokens: int
    least: int
    most: int
    share: float
    """Of the held-out targets."""
    nats: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def losses_of(model: GPT, corpus: Corpus, batch: int = 16) -> Losses:
    """Nats of every held-out target, in order."""
    import torch

    from tiebeam.corpus import every_target

    parts = []
    model.eval()
    with torch.no_grad():
        for x, y in every_target(corpus.val, batch, model.config.context):
            found = model(torch.from_numpy(x), torch.from_numpy(y), reduction="none")
            parts.append(found.reshape(-1).numpy().astype(np.float32))
    return np.concatenate(parts)


def token_counts(corpus: Corpus) -> NDArray[np.int64]:  # -> [V]
    """How often each token is in the training split."""
    total = np.zeros(corpus.vocab, np.int64)
    for chunk in corpus.train.chunks():
        total += np.bincount(chunk, minlength=corpus.vocab)
    return total


def bands(losses: Losses, targets: NDArray[Any], counts: NDArray[np.int64], number: int = BANDS) -> list[Band]:
    """The mean loss by how common the target is, common first; each band is about as much text as the next."""
    order = np.argsort(-counts, kind="stable")
    mass = np.cumsum(counts[order]) / max(1, counts.sum())
    place = np.empty(len(counts), np.int64)
    place[order] = np.minimum(number - 1, (number * (mass - 1e-12)).astype(np.int64))
    of_target = place[targets]
    found = []
    for i in range(number):
        mine, here = counts[place == i], of_target == i
        if here.any():
            found.append(
                Band(
                    int(mine.size), int(mine.min()), int(mine.max()), float(here.mean()),
                    float(losses[here].astype(np.float64).mean()),
                )
            )  # fmt: skip
    return found


def paired_error(a: Losses, b: Losses, corpus: Corpus) -> float:
    """The standard error of bpb(a) - bpb(b) from the choice of held-out documents, as a ratio estimator's."""
    tokens = np.asarray(corpus.val[:])
    targets, previous = tokens[1:], tokens[:-1]
    group = np.cumsum(previous == corpus.boundary)
    if group[-1] < 8:  # too few documents to compare: stretches of text instead
        group = np.arange(len(targets)) * 32 // len(targets)
    group = group - group[0]
    table = corpus.bytes_per_token
    difference = np.bincount(group, weights=(a - b).astype(np.float64))
    text = np.bincount(group, weights=table[targets].astype(np.float64))
    kept = text > 0
    difference, text = difference[kept], text[kept]
    n = len(text)
    if n < 2:
        return float("nan")
    ratio = difference.sum() / text.sum()
    residual = difference - ratio * text
    return float(np.sqrt(n / (n - 1) * (residual**2).sum()) / text.sum() / np.log(2))


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Over seeds: the mean, and its standard error (None for one)."""
    array = np.asarray(values, np.float64)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else None
