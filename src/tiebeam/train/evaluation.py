"""The loss on the held-out split: every target once, in nats per token and in bits per byte."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from tiebeam.corpus import bits_per_byte
from tiebeam.corpus.batches import every_target
from tiebeam.train.machine import arithmetic

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.nn import GPT


@dataclass(frozen=True, slots=True)
class Evaluation:
    nats: float
    bpb: float
    tokens: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def evaluate(model: GPT, corpus: Corpus, *, batch: int = 16, most_tokens: int | None = None) -> Evaluation:
    """The mean loss over the validation split, or over its first `most_tokens` targets; sums in float64."""
    device = model.table.weight.device
    total, tokens, text = 0.0, 0, 0
    training = model.training
    model.eval()
    for x, y in every_target(corpus.val, batch, model.config.context):
        ids, targets = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
        with arithmetic(device):
            total += float(model(ids, targets, reduction="sum"))
        tokens += y.size
        text += corpus.bytes_of(y.reshape(-1), x.reshape(-1))
        if most_tokens is not None and tokens >= most_tokens:
            break
    model.train(training)
    nats = total / tokens
    return Evaluation(nats, bits_per_byte(nats, tokens, text), tokens)
