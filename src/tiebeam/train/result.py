"""What a run comes to, on whichever backend: its numbers, or a loss that is none."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tiebeam.errors import TiebeamError


class Diverged(TiebeamError):
    """The loss stopped being a number."""

    def __init__(self, loss: float, step: int, warmup_steps: int) -> None:
        super().__init__(
            f"the loss is {loss} at step {step}; lower the rates (--rate-scale 0.5) or warm up longer "
            f"(--warmup-steps {max(50, 2 * warmup_steps)})"
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The loss on held-out text: nats per token, bits per byte, and over how many targets."""

    nats: float
    bpb: float
    tokens: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended. `tokens_per_second` is of training alone."""

    path: str
    steps: int
    seconds: float
    tokens_per_second: float
    final: Evaluation
    params: int
    tied: bool
    finished: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
