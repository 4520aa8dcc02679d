"""Loader and Prediction: what is known about a program that loads checkpoints, and what it will do with one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiebeam.doctor.examined import stored_state
from tiebeam.doctor.loaders.preconditions import Unmet, preconditions
from tiebeam.inspection import Report

Config = Mapping[str, Any] | None
Outcome = tuple[str, str]  # (outcome, reason)
# (stored state, tied) -> outcome; the states are those of examined.stored_state.
Table = Mapping[tuple[str, bool], Outcome]

NOT_KNOWN, NOT_SUPPORTED = "not known", "not supported"


@dataclass(frozen=True, slots=True)
class Prediction:
    """`outcome`: ties, keeps both, drops the stored head, random head (or embedding, or pair), refuses, not supported
    (the loader does not know this type), or not known (no promise is made)."""

    loader: str
    outcome: str
    reason: str
    source: str
    version: str
    observed: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "loader": self.loader,
            "outcome": self.outcome,
            "reason": self.reason,
            "source": self.source,
            "version": self.version,
            "observed": self.observed,
        }


@dataclass(frozen=True, slots=True)
class Loader:
    """A loader at the version examined on `date`. `observed`: the tests run it and compare it with `predict`; otherwise
    its behaviour was read in its source, or with `assumed` taken from the program that it uses. `rank` orders the table
    that people see."""

    rank: int
    name: str
    version: str
    date: str
    observed: bool
    formats: tuple[str, ...]
    where: str
    """The part of its source that decides."""
    predict: Callable[[Report, Config], Outcome]
    tried: Callable[[str | None], bool] | None = None
    """Whether a model type was tried, if not every type was; for the others the prediction counts as read in source."""
    assumed: bool = False
    copes_with: tuple[str, ...] = ()
    """Kinds of failed preconditions that make no difference to it."""
    unmet: Mapping[str, Outcome] = field(default_factory=dict)
    """What it does when a precondition fails, by the kind of preconditions.py; a kind that is not here is not known."""

    @property
    def source(self) -> str:
        return self._source(self.observed)

    def _source(self, observed: bool) -> str:
        how = "run in the tests" if observed else "assumed, not read" if self.assumed else "from its source"
        return f"{f'version {self.version}, ' if self.version else ''}{self.where}, {how}, {self.date}"

    def prediction(self, report: Report, config: Config) -> Prediction:
        failed = [unmet for unmet in preconditions(report, config) if unmet.kind not in self.copes_with]
        outcome, reason = self._without(failed[0]) if failed else self.predict(report, config)
        observed = self.observed and (self.tried is None or self.tried(report.architecture))
        return Prediction(self.name, outcome, reason, self._source(observed), self.version, observed)

    def _without(self, failed: Unmet) -> Outcome:
        outcome, reason = self.unmet.get(failed.kind, (NOT_KNOWN, ""))
        return outcome, f"{failed.text}: {reason}" if reason else failed.text


def look_up(table: Table, report: Report, tied: bool | None) -> Outcome:
    """The entry for what is stored and for what the loader makes of the flag; without a flag no promise is made."""
    if tied is None:
        return NOT_KNOWN, f"whether the model is tied is not declared: {report.pair.declared_by}"
    return table[stored_state(report), tied]
