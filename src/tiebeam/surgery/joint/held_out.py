"""Text that nothing was fitted to: what the joined model does there, against the model as it was."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tiebeam.decode import Decoder

Array = NDArray[Any]
_LOGITS = 1 << 22  # numbers in one block of logits


@dataclass(frozen=True, slots=True)
class Measured:
    """Per token: `nats` of loss, `kl` from the original in nats, `agreement` how often both take the same token."""

    nats: float
    kl: float
    agreement: float
    tokens: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class HeldOut:
    """Runs of tokens, and the model as it was; its hidden states are computed once."""

    original: Decoder
    runs: list[list[int]]

    @cached_property
    def _hidden(self) -> list[Array]:
        return [self.original.hidden(run[:-1]) for run in self.runs]

    @cached_property
    def before(self) -> Measured:
        return self.measure(self.original)

    def measure(self, joined: Decoder) -> Measured:
        nats = kl = agree = 0.0
        tokens = 0
        step = max(1, _LOGITS // joined.vocab)
        for run, hidden in zip(self.runs, self._hidden, strict=True):
            states = hidden if joined is self.original else joined.hidden(run[:-1])
            targets = np.asarray(run[1:])
            for at in range(0, len(targets), step):
                part = slice(at, at + step)
                p = _log_softmax(self.original.unembed(hidden[part]))  # [s, V]
                q = p if joined is self.original else _log_softmax(joined.unembed(states[part]))
                rows = np.arange(len(p))
                nats -= float(q[rows, targets[part]].sum(dtype=np.float64))
                kl += float((np.exp(p) * (p - q)).sum(dtype=np.float64))
                agree += int((p.argmax(1) == q.argmax(1)).sum())
                tokens += len(p)
        return Measured(nats / tokens, kl / tokens, agree / tokens, tokens)


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
