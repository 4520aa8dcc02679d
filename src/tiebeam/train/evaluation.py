"""The loss on the held-out split: every target once, in nats per token and in bits per byte."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from tiebeam.corpus import bits_per_byte
from tiebeam.corpus.batches import Batch, every_target
from tiebeam.train.device import arithmetic
from tiebeam.train.distribution import Distribution
from tiebeam.train.result import Evaluation

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.nn import GPT

_NOTHING = -100  # a target that does not count


@torch.no_grad()
def evaluate(
    model: GPT,
    corpus: Corpus,
    *,
    batch: int = 16,
    most_tokens: int | None = None,
    processes: Distribution | None = None,
) -> Evaluation:
    """The mean loss over the validation split, or over its first `most_tokens` targets; sums in float64.

    Several processes take the batches in turn. In the last round there may be too few: whoever has none goes through
    the same motions with nothing to predict, since a model that is shared out runs on all of them or on none.
    """
    processes = processes or Distribution()
    device = model.table.weight.device
    total, tokens, text = 0.0, 0, 0
    training = model.training
    model.eval()
    batches = _first(every_target(corpus.val, batch, model.config.context), most_tokens)
    while turn := list(islice(batches, processes.world)):
        x, y = turn[processes.rank] if processes.rank < len(turn) else (turn[0][0], np.full_like(turn[0][1], _NOTHING))
        ids, targets = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
        with arithmetic(device):
            total += float(model(ids, targets, reduction="sum")) * processes.own_share
        if processes.rank < len(turn):
            tokens += y.size
            text += corpus.bytes_of(y.reshape(-1), x.reshape(-1))
    model.train(training)
    processes.settle(model)
    total, all_tokens, all_text = processes.summed(total, tokens, text)
    nats = total / all_tokens
    return Evaluation(nats, bits_per_byte(nats, int(all_tokens), int(all_text)), int(all_tokens))


def _first(batches: Iterator[Batch], most_tokens: int | None) -> Iterator[Batch]:
    tokens = 0
    for x, y in batches:
        yield x, y
        tokens += y.size
        if most_tokens is not None and tokens >= most_tokens:
            return
