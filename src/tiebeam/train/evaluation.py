"""The loss on the held-out split: every target once, in nats per token and bits per byte.

`held_out_loss` is the same for every backend: it hands out the batches and adds up in float64. A backend computes the
summed loss of one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from tiebeam.corpus import bits_per_byte
from tiebeam.corpus.batches import Batch, every_target
from tiebeam.train.distributed.environment import Distribution
from tiebeam.train.result import Evaluation

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.nn import GPT

LossSum = Callable[[Batch], float]  # x, y: [B, T] -> this rank's summed loss, in nats
_IGNORED = -100


def evaluate(model: GPT, corpus: Corpus, *, batch: int = 16, max_tokens: int | None = None) -> Evaluation:
    """The mean loss of a torch model over the held-out split.

    Args:
        model: a `tiebeam.nn.GPT`, on any device.
        corpus: the corpus whose held-out split is used.
        batch: windows per forward pass.
        max_tokens: stop after the batch that reaches this number of targets; None covers the full split.
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
    """The mean loss over the held-out split, or over its first `max_tokens` targets.

    Several ranks take the batches in turn. In the last round there may be fewer batches than ranks: a rank without a
    batch still runs the model, with all targets ignored, because the forward pass of a sharded model is a collective.
    """
    ranks = distribution or Distribution()
    total, tokens, text_bytes = 0.0, 0, 0
    batches = _take(every_target(corpus.val, batch, context), max_tokens)
    while turn := list(islice(batches, ranks.world_size)):
        if ranks.rank < len(turn):
            x, y = turn[ranks.rank]
            tokens += y.size
            text_bytes += corpus.bytes_of(y.reshape(-1), x.reshape(-1))
        else:
            x, y = turn[0][0], np.full_like(turn[0][1], _IGNORED)
        total += loss_sum((x, y))
    total, all_tokens, all_bytes = ranks.sum(total, tokens, text_bytes)
    nats = total / all_tokens
    return Evaluation(nats, bits_per_byte(nats, int(all_tokens), int(all_bytes)), int(all_tokens))


def _take(batches: Iterator[Batch], max_tokens: int | None) -> Iterator[Batch]:
    tokens = 0
    for x, y in batches:
        yield x, y
        tokens += y.size
        if max_tokens is not None and tokens >= max_tokens:
            return
