"""Learning rate and momentum schedule, by the fraction of the run that is done.

The length of a run is given in steps, in seconds, or both (whichever ends first). The learning rate warms up over the
first steps, stays at its peak, and decays linearly over the last half. The decay goes by fractions of the run, so the
schedule has the same shape on a slow machine. Warmups are counted in steps, but end after a fixed fraction of the run
at the latest, for runs of few steps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tiebeam.errors import BadRequest


@dataclass(frozen=True)
class Budget:
    """The length of a run. Seconds count training only, without validation and saving.

    >>> Budget(steps=200).progress(step=50, elapsed=0.0)
    0.25
    """

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None:
            raise BadRequest("a budget needs `steps` or `seconds`")
        if self.steps is not None and self.steps < 1:
            raise BadRequest(f"`steps` must be at least 1, not {self.steps}")
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise BadRequest(f"`seconds` must be above 0 and finite, not {self.seconds}")

    def progress(self, step: int, elapsed: float) -> float:
        """The fraction of the run that is done before step `step` (from 0), in [0, 1]."""
        by_steps = step / self.steps if self.steps is not None else 0.0
        by_time = elapsed / self.seconds if self.seconds is not None else 0.0
        return min(1.0, max(by_steps, by_time))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Schedule:
    """The multiplier of the peak learning rates and Muon's momentum, by step and progress."""

    warmup_steps: int = 15
    decay_from: float = 0.5  # the fraction of the run where the decay begins; 1.0 for no decay
    final: float = 0.0  # the multiplier at the end
    momentum: tuple[float, float] = (0.85, 0.95)
    momentum_steps: int = 100

    def __post_init__(self) -> None:
        if self.warmup_steps < 0 or self.momentum_steps < 0:
            raise BadRequest(
                f"`warmup_steps={self.warmup_steps}` and `momentum_steps={self.momentum_steps}` must be at least 0"
            )
        if not 0 <= self.decay_from <= 1:
            raise BadRequest(f"`decay_from={self.decay_from}` must be between 0 and 1")
        if not 0 <= self.final <= 1:
            raise BadRequest(f"`final={self.final}` must be between 0 and 1")
        if not all(0 <= value < 1 for value in self.momentum):
            raise BadRequest(f"`momentum={self.momentum}` must be at least 0 and below 1")

    def multiplier(self, step: int, progress: float) -> float:
        """What to multiply the peak learning rates by."""
        warmup = _ramp(step + 1, self.warmup_steps, progress, by=0.1)
        if progress <= self.decay_from:
            return warmup
        left = (1 - progress) / (1 - self.decay_from)
        return warmup * (self.final + (1 - self.final) * left)

    def momentum_at(self, step: int, progress: float) -> float:
        low, high = self.momentum
        return low + (high - low) * _ramp(step, self.momentum_steps, progress, by=0.25)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _ramp(step: int, steps: int, progress: float, by: float) -> float:
    """From 0 to 1 over `steps`, or by that fraction of the run if it comes first."""
    return min(1.0, max(step / steps if steps else 1.0, progress / by))
