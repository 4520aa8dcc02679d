"""Compare the jointly tied model with the original on held-out text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.decode.numpy.ops import log_softmax

if TYPE_CHECKING:
    from tiebeam.decode import Engine

Array = NDArray[Any]
_LOGITS = 1 << 20  # elements in one block of logits; five such blocks exist at a time
_NORMAL = 1.96  # a 95% confidence interval, in standard errors


@dataclass(frozen=True, slots=True)
class Measured:
    """Per token: loss in `nats`, `kl` from the original in nats, `agreement` as the share of equal top tokens.
    `interval` is half of the 95% confidence interval of the loss minus the original's."""

    nats: float
    kl: float
    agreement: float
    tokens: int
    interval: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class HeldOut:
    """Runs of tokens and the original model. Its hidden states are given, or computed once: `states` has those of
    every position of a run but the last."""

    original: Engine
    runs: list[list[int]]
    given: list[Array] | None = None

    @cached_property
    def states(self) -> list[Array]:  # [t - 1, D] each
        return [self.original.hidden(run[:-1]) for run in self.runs] if self.given is None else self.given

    @cached_property
    def before(self) -> Measured:
        return self.measure(self.original)

    def first(self, tokens: int) -> HeldOut:
        """About `tokens` tokens of it: the beginning of every run."""
        length = max(2, tokens // max(1, len(self.runs)))
        states = [h[: length - 1] for h in self.states]
        return HeldOut(self.original, [run[:length] for run in self.runs], states)

    def measure(
        self, joined: Engine, progress: Callable[[int, int], None] = lambda done, total: None, *, layers: bool = True
    ) -> Measured:
        """Run `joined` on the text. Without `layers` only its head is compared, on the original's hidden states."""
        nats = kl = agree = 0.0
        lost: list[Array] = []
        step = max(1, _LOGITS // joined.vocab)
        progress(0, len(self.runs))
        for done, (run, hidden) in enumerate(zip(self.runs, self.states, strict=True)):
            states = joined.hidden(run[:-1]) if layers and joined is not self.original else hidden
            targets = np.asarray(run[1:])
            for at in range(0, len(targets), step):
                part = slice(at, at + step)
                p = log_softmax(self.original.unembed(hidden[part]))  # [s, V]
                q = p if joined is self.original else log_softmax(joined.unembed(states[part]))
                here = np.arange(len(p)), targets[part]
                nats -= float(q[here].sum(dtype=np.float64))
                lost.append(p[here] - q[here])
                kl += float((np.exp(p) * (p - q)).sum(dtype=np.float64))
                agree += int((p.argmax(1) == q.argmax(1)).sum())
            progress(done + 1, len(self.runs))
        tokens = sum(map(len, lost))
        interval = _NORMAL * float(np.std(np.concatenate(lost))) / tokens**0.5
        return Measured(nats / tokens, kl / tokens, agree / tokens, tokens, interval)
