"""The loss on held-out text, in nats per token and bits per byte.

`held_out_loss` is the same for every backend: it hands out the batches and adds up in float64. A backend computes the
summed loss of one batch, or with `losses_by_document` the loss of every target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.corpus import bits_per_byte
from tiebeam.corpus.batches import Batch
from tiebeam.train.distributed.environment import Distribution
from tiebeam.train.held_out_windows import HeldOutWindows
from tiebeam.train.result import Evaluation

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.nn import GPT

LossSum = Callable[[Batch], float]  # x, y: [B, T] -> this rank's summed loss, in nats
TargetLosses = Callable[[Batch], NDArray[Any]]  # x, y: [B, T] -> [B, T], in nats
_IGNORED = -100


def evaluate(model: GPT, corpus: Corpus, *, batch: int = 16, max_tokens: int | None = None) -> Evaluation:
    """The mean loss of a torch model over the held-out split.

    Args:
        model: a `tiebeam.nn.GPT`, on any device.
        corpus: the corpus whose held-out split is used.
        batch: windows per forward pass.
        max_tokens: use evenly spaced windows with at most this number of targets; None covers the full split.
    """
    from tiebeam.train.backends.torch import evaluating, loss_sum

    with evaluating(model):
        return held_out_loss(
            lambda pair: loss_sum(model, pair), corpus, model.config.context, batch=batch, max_tokens=max_tokens
        )


def held_out_loss(
    loss_sum: LossSum, corpus: Corpus, context: int, *, batch: int, max_tokens: int | None = None,
    distribution: Distribution | None = None,
) -> Evaluation:  # fmt: skip
    """The mean loss over the held-out split, or over evenly spaced windows of it with at most `max_tokens` targets.

    Several ranks take the batches in turn. In the last round there may be fewer batches than ranks: a rank without a
    batch still runs the model, with all targets ignored, because the forward pass of a sharded model is a collective.
    """
    ranks = distribution or Distribution()
    total, tokens, text_bytes = 0.0, 0, 0
    for _, (x, y), mine in _turns(HeldOutWindows(corpus, context, max_tokens), batch, ranks):
        if mine:
            tokens += y.size
            text_bytes += corpus.bytes_of(y.reshape(-1), x.reshape(-1))
        total += loss_sum((x, y))
    total, all_tokens, all_bytes = ranks.sum(total, tokens, text_bytes)
    nats = total / all_tokens
    return Evaluation(nats, bits_per_byte(nats, int(all_tokens), int(all_bytes)), int(all_tokens))


def losses_by_document(
    target_losses: TargetLosses, windows: HeldOutWindows, *, batch: int, distribution: Distribution | None = None
) -> NDArray[np.float64]:  # -> [G]
    """The summed loss of each held-out document in nats. Each rank holds the full model and takes its own batches."""
    ranks = distribution or Distribution()
    sums = np.zeros(len(windows.bytes))
    for first, pair, mine in _turns(windows, batch, ranks):
        if mine:
            sums += windows.by_group(target_losses(pair), first)
    return np.asarray(ranks.sum(*sums.tolist()))


def _turns(windows: HeldOutWindows, batch: int, ranks: Distribution) -> Iterator[tuple[int, Batch, bool]]:
    """This rank's batch of every round: the number of its first target, x and y, and whether the targets count."""
    batches, first = windows.batches(batch), 0
    while turn := list(islice(batches, ranks.world_size)):
        sizes = [y.size for _, y in turn]
        if ranks.rank < len(turn):
            yield first + sum(sizes[: ranks.rank]), turn[ranks.rank], True
        else:
            yield first, (turn[0][0], np.full_like(turn[0][1], _IGNORED)), False
        first += sum(sizes)
