"""Peak learning rates by parameter role, the same for every backend."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tiebeam.errors import BadRequest

Preset = Literal["muon", "adamw"]
Role = Literal["table", "head", "matrices", "scalars"]
ROLES: tuple[Role, ...] = ("table", "head", "matrices", "scalars")
_RATES = ("matrices", "table", "embed", "head", "scalars", "single")


@dataclass(frozen=True)
class LearningRates:
    """Peak learning rates, reached after warmup and held until the decay. `LearningRates.of` has the defaults.

    Args:
        matrices: Muon, for the weight matrices of the layers.
        table: Adam, for a tied embedding. parameter-golf uses 0.05, where the loss of the golf architecture spikes in
            the first steps; at 0.02 and below it does not.
        embed: Adam, for the embedding of an untied pair. Higher than the tied one, because no logits depend on it.
            0.6 is parameter-golf's, for tables initialized from N(0, 1).
        head: Adam, for the LM head of an untied pair.
        scalars: Adam, for norms, gains and residual mixes.
        single: the one learning rate of the "adamw" preset.
        weight_decay: of the "adamw" preset.

    >>> LearningRates(matrices=0.04).scaled(0.5).matrices
    0.02
    """

    matrices: float = 0.03
    table: float = 0.02
    embed: float = 0.6
    head: float = 0.008
    scalars: float = 0.03
    single: float = 3e-3
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)

    def __post_init__(self) -> None:
        for name in (*_RATES, "weight_decay"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise BadRequest(f"the learning rate {name}={value} must be a finite number of at least 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise BadRequest(f"Adam's betas={self.betas} must be at least 0 and below 1")

    @classmethod
    def of(cls, arch: str, dim: int) -> LearningRates:
        """The defaults of an architecture at a width, from the sweeps in docs/recipe.md.

        The best rates of a tied embedding and of an untied head fall as 1/width, that of an untied embedding does not
        fall. Below width 64 nothing was swept; the rates stay those of 64. The golf architecture was swept tied only.

        >>> LearningRates.of("standard", 256).table, LearningRates.of("standard", 256).head
        (0.0125, 0.00390625)
        """
        width = max(dim, 64)
        if arch == "golf":
            return cls(matrices=0.022, table=1.5 / width)
        return cls(table=3.2 / width, embed=0.15, head=1.0 / width)

    def scaled(self, factor: float) -> LearningRates:
        """Every learning rate times `factor`."""
        return replace(self, **{name: getattr(self, name) * factor for name in _RATES})

    def by_role(self, preset: Preset, tied: bool) -> dict[Role, float]:
        """The peak learning rate of each role."""
        if preset not in ("muon", "adamw"):
            raise BadRequest(f"`optimizer={preset!r}` is not supported; use 'muon' or 'adamw'")
        if preset == "adamw":
            return dict.fromkeys(ROLES, self.single)
        table = self.table if tied else self.embed
        return {"table": table, "head": self.head, "matrices": self.matrices, "scalars": self.scalars}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
