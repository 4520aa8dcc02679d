"""How many known models tie, by head share.

Head share predicts tying better than anything else: if a separate LM head would be a large part of the model, nearly
all models tie; if it would be negligible, nearly none do. Models are counted in bands of head share, each wide enough
to hold at least a dozen. Not counted: models whose tie is known with low confidence only, and models whose embedding
and LM head differ in width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from tiebeam.budget import Budget, human, percent
from tiebeam.catalog.known_models import KnownModel, known_models


@dataclass(frozen=True, slots=True)
class Band:
    """Head shares from `low` to `high` percent, `high` excluded."""

    low: int
    high: int

    def __contains__(self, share: float) -> bool:
        return self.low <= 100 * share < self.high

    def __str__(self) -> str:
        if self.low == 0:
            return f"under {self.high}%"
        return f"{self.low}-{self.high}%" if self.high < 50 else f"{self.low}% or more"


# The share is at most 50%: one of two equal matrices. The last band has no upper limit.
_EDGES = (0, 2, 5, 10, 15, 25, 101)
SIZES = {"1B": 10**9, "7B": 7 * 10**9, "70B": 70 * 10**9}
BANDS = tuple(Band(low, high) for low, high in pairwise(_EDGES))


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many known models in a band tie. `minority` names the models of the smaller side."""

    band: Band
    models: int
    tied: int
    minority: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        return f"{self.tied} of {self.models} tie" + ("s" if self.models == 1 else "")

    @property
    def sentence(self) -> str:
        where = f"where a separate head would be {self.band} of the total"
        untied = self.models - self.tied
        if self.models == 0:
            return f"There is no known model {where}."
        if self.models == 1:
            return f"The one known model {where} {'ties' if self.tied else 'does not tie'}."
        if untied == 0:
            return f"All {self.models} known models {where} tie."
        if self.tied == 0:
            return f"None of the {self.models} known models {where} ties."
        opening = f"Of {self.models} known models {where}, "
        if 3 * self.tied >= 2 * self.models:
            odd = f"; {_and(self.minority)} {'does' if untied == 1 else 'do'} not" if untied <= 3 else ""
            return opening + f"{self.tied} {'ties' if self.tied == 1 else 'tie'}{odd}."
        if 3 * self.tied <= self.models:
            odd = f": {_and(self.minority)}" if self.tied <= 3 else ""
            return opening + f"only {self.tied} {'ties' if self.tied == 1 else 'tie'}{odd}."
        keeps = "keeps" if untied == 1 else "keep"
        return opening + f"{self.tied} {'ties' if self.tied == 1 else 'tie'} and {untied} {keeps} two matrices."


def verdict(share: float) -> Verdict:
    """How many known models with about this head share tie."""
    band = next(band for band in BANDS if share in band)
    models = [model for known, model in _by_share() if known in band]
    tied = [model.name for model in models if model.tied]
    untied = [model.name for model in models if not model.tied]
    return Verdict(band, len(models), len(tied), tuple(tied if len(tied) < len(untied) else untied))


def verdict_by_size(budget: Budget) -> str:
    """The head share in models of common sizes: without non-embedding parameters there is no single share."""
    found = []
    for name, inside in within_sizes(budget):
        if inside and (share := inside.head_share):
            found.append(f"{percent(share)} of a {name} model, where {verdict(share).short}")
    if not found:
        return f"The two matrices alone are {human(2 * budget.matrix)}, more than a 70B model has."
    return f"One matrix is {'; '.join(found)} (known models of similar head share)."


def within_sizes(budget: Budget) -> Iterator[tuple[str, Budget | None]]:
    """The same matrices in models of common sizes; None if they do not fit."""
    return ((name, budget.within(total)) for name, total in SIZES.items())


def neighbours(share: float, count: int = 3, besides: KnownModel | None = None) -> tuple[KnownModel, ...]:
    """The known models with the nearest head share, except `besides`."""
    others = (pair for pair in _by_share() if pair[1] is not besides)
    nearest = sorted(others, key=lambda pair: abs(pair[0] - share))
    return tuple(model for _, model in nearest[:count])


@cache
def _by_share() -> tuple[tuple[float, KnownModel], ...]:
    counted = [
        (share, model)
        for model in known_models()
        if (share := model.head_share) is not None and model.confidence != "low"
    ]
    return tuple(sorted(counted, key=lambda pair: pair[0]))


def _and(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
