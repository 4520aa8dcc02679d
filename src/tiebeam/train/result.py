"""The outcome of a run: its final numbers, or a loss that is not finite."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tiebeam.errors import TiebeamError


class Diverged(TiebeamError):
    """The loss is NaN or infinite."""

    def __init__(self, loss: float, step: int, warmup_steps: int) -> None:
        super().__init__(
            f"the loss is {loss} at step {step}; lower the learning rates (`LearningRates.scaled(0.5)`) or use a "
            f"longer warmup (`warmup_steps={max(50, 2 * warmup_steps)}`)"
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The loss on held-out text: nats per token, bits per byte, and the number of targets."""

    nats: float
    bpb: float
    tokens: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a run. `tokens_per_second` counts training only; `finished` is False after an interrupt."""

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
