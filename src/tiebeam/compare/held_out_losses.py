"""Loss of every held-out target, and the mean loss by token frequency."""

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
class FrequencyBand:
    """Tokens of one frequency range, which together make up about a fifth of the text."""

    tokens: int
    least: int
    most: int
    share: float
    """Of the held-out targets."""
    nats: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def held_out_losses(model: GPT, corpus: Corpus, batch: int = 16) -> Losses:  # -> [N]
    """Loss in nats of every held-out target, in order."""
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
    """Number of occurrences of each token in the training split."""
    total = np.zeros(corpus.vocab, np.int64)
    for chunk in corpus.train.chunks():
        total += np.bincount(chunk, minlength=corpus.vocab)
    return total


def loss_by_frequency(
    losses: Losses, targets: NDArray[Any], counts: NDArray[np.int64], number: int = BANDS
) -> list[FrequencyBand]:
    """Mean loss by frequency of the target token, most frequent first; each band is about the same amount of text."""
    order = np.argsort(-counts, kind="stable")
    mass = np.cumsum(counts[order]) / max(1, counts.sum())
    band = np.empty(len(counts), np.int64)
    band[order] = np.minimum(number - 1, (number * (mass - 1e-12)).astype(np.int64))
    of_target = band[targets]
    found = []
    for i in range(number):
        mine, here = counts[band == i], of_target == i
        if here.any():
            found.append(
                FrequencyBand(
                    int(mine.size), int(mine.min()), int(mine.max()), float(here.mean()),
                    float(losses[here].astype(np.float64).mean()),
                )
            )  # fmt: skip
    return found


def mean_and_standard_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean over seeds, and its standard error (None for one value).

    >>> mean_and_standard_error([2.0])
    (2.0, None)
    """
    array = np.asarray(values, np.float64)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else None
