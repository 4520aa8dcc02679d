"""The learning rates of each role, for every backend."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from tiebeam.errors import BadRequest

Preset = Literal["muon", "adamw"]


@dataclass(frozen=True)
class Rates:
    """Learning rates at the height of the schedule.

    table     a tied table: parameter-golf starts at 0.05, where the golf block's loss spikes at once; at 0.02
              it does not. The standard architecture bears 0.05 and learns faster with it: see `Rates.of`.
    embed     the lookup of an untied pair: thirty times the tied one, since no logits hang on it; good for tables drawn
              from N(0, 1) and from N(0, 0.02) alike.
    head      the other end of an untied pair.
    single    the one rate of the "adamw" preset.
    """

    matrices: float = 0.03
    table: float = 0.02
    embed: float = 0.6
    head: float = 0.008
    scalars: float = 0.03
    single: float = 3e-3
    weight_decay: float = 0.1  # of the "adamw" preset
    betas: tuple[float, float] = (0.9, 0.95)

    def __post_init__(self) -> None:
        for name in ("matrices", "table", "embed", "head", "scalars", "single", "weight_decay"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise BadRequest(f"the rate {name} is {value}; it is a number from 0 up")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise BadRequest(f"Adam's betas are {self.betas}; each is at least 0 and below 1")

    @classmethod
    def of(cls, arch: str) -> Rates:
        """The defaults of an architecture."""
        return cls(table=0.05) if arch == "standard" else cls()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
