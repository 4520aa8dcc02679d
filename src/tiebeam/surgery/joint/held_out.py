"""Compare the jointly tied model with the original on held-out text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.decode.numpy.ops import log_softmax

if TYPE_CHECKING:
    from tiebeam.decode import Engine

Array = NDArray[Any]
_LOGITS = 1 << 22  # elements in one block of logits


@dataclass(frozen=True, slots=True)
class Measured:
    """Per token: loss in `nats`, `kl` from the original in nats, `agreement` as the share of equal top tokens."""

    nats: float
    kl: float
    agreement: float
    tokens: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class HeldOut:
    """Held-out runs of tokens and the original model, whose hidden states are computed once."""

    original: Engine
    runs: list[list[int]]

    @cached_property
    def _hidden(self) -> list[Array]:
        return [self.original.hidden(run[:-1]) for run in self.runs]

    @cached_property
    def before(self) -> Measured:
        return self.measure(self.original)

    def measure(self, joined: Engine) -> Measured:
        nats = kl = agree = 0.0
        tokens = 0
        step = max(1, _LOGITS // joined.vocab)
        for run, hidden in zip(self.runs, self._hidden, strict=True):
            states = hidden if joined is self.original else joined.hidden(run[:-1])
            targets = np.asarray(run[1:])
            for at in range(0, len(targets), step):
                part = slice(at, at + step)
                p = log_softmax(self.original.unembed(hidden[part]))  # [s, V]
                q = p if joined is self.original else log_softmax(joined.unembed(states[part]))
                rows = np.arange(len(p))
                nats -= float(q[rows, targets[part]].sum(dtype=np.float64))
                kl += float((np.exp(p) * (p - q)).sum(dtype=np.float64))
                agree += int((p.argmax(1) == q.argmax(1)).sum())
                tokens += len(p)
        return Measured(nats / tokens, kl / tokens, agree / tokens, tokens)
