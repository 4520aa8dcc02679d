"""How far a run has come, and what rate and momentum that calls for.

A run is measured in steps, in seconds, or in both, whichever is spent first. Rates rise over the first few steps,
stay, and fall in a straight line over the last half: by fractions of the run, so that it has the same shape on a slow
machine. Warm-ups are counted in steps, but end after a fraction of the run at the latest, for runs of few steps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tiebeam.errors import BadRequest


@dataclass(frozen=True)
class Budget:
    """What a run may take; seconds count training alone, without validation and saving."""

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None:
            raise BadRequest("a run needs an end: give it a number of steps, or minutes")
        if self.steps is not None and self.steps < 1:
            raise BadRequest(f"a run of {self.steps} steps does nothing; give it at least 1")
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise BadRequest(f"a run of {self.seconds} seconds does nothing; give it more")

    def progress(self, step: int, elapsed: float) -> float:
        """The fraction that is spent before step `step` (from 0), in [0, 1]."""
        by_steps = step / self.steps if self.steps is not None else 0.0
        by_time = elapsed / self.seconds if self.seconds is not None else 0.0
        return min(1.0, max(by_steps, by_time))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Schedule:
    """Multipliers of the rates and Muon's momentum, by step and progress."""

    warmup_steps: int = 15
    decay_from: float = 0.5  # the fraction of the run where the fall begins; 1.0 for none
    final: float = 0.0  # what the multiplier falls to
    momentum: tuple[float, float] = (0.85, 0.95)
    momentum_steps: int = 100

    def __post_init__(self) -> None:
        if self.warmup_steps < 0 or self.momentum_steps < 0:
            raise BadRequest(f"warm-ups take {self.warmup_steps} and {self.momentum_steps} steps; none is below 0")
        if not 0 <= self.decay_from <= 1:
            raise BadRequest(f"the decay begins at {self.decay_from} of the run; that lies between 0 and 1")
        if not 0 <= self.final <= 1:
            raise BadRequest(f"the rates fall to {self.final} of their height; that lies between 0 and 1")
        if not all(0 <= value < 1 for value in self.momentum):
            raise BadRequest(f"the momentum goes {self.momentum}; both are at least 0 and below 1")

    def multiplier(self, step: int, progress: float) -> float:
        rise = _ramp(step + 1, self.warmup_steps, progress, by=0.1)
        if progress <= self.decay_from:
            return rise
        left = (1 - progress) / (1 - self.decay_from)
        return rise * (self.final + (1 - self.final) * left)

    def momentum_at(self, step: int, progress: float) -> float:
        low, high = self.momentum
        return low + (high - low) * _ramp(step, self.momentum_steps, progress, by=0.25)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _ramp(step: int, steps: int, progress: float, by: float) -> float:
    """From 0 to 1 over `steps`, or by that fraction of the run if it comes first."""
    return min(1.0, max(step / steps if steps else 1.0, progress / by))
