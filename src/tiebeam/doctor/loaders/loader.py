"""Loader and Prediction: what is known about a program that loads checkpoints, and what it will do with one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tiebeam.doctor.examined import stored_state
from tiebeam.inspection import Report

Config = Mapping[str, Any] | None
Outcome = tuple[str, str]  # (outcome, reason)
# (stored state, declared tied) -> outcome; the states are those of examined.stored_state.
Table = Mapping[tuple[str, bool], Outcome]


@dataclass(frozen=True, slots=True)
class Prediction:
    """`outcome`: ties, keeps both, drops the stored head, random head (or embedding, or pair), or refuses."""

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
    its behaviour was read in its source. `rank` orders the table that people see."""

    rank: int
    name: str
    version: str
    date: str
    observed: bool
    formats: tuple[str, ...]
    where: str
    """The part of its source that decides."""
    predict: Callable[[Report, Config], Outcome]

    @property
    def source(self) -> str:
        how = "run in the tests" if self.observed else "from its source"
        return f"{f'version {self.version}, ' if self.version else ''}{self.where}, {how}, {self.date}"

    def prediction(self, report: Report, config: Config) -> Prediction:
        outcome, reason = self.predict(report, config)
        return Prediction(self.name, outcome, reason, self.source, self.version, self.observed)


def look_up(table: Table, report: Report, declared: bool | None) -> Outcome:
    """The entry for what is stored and declared; if nothing is declared, what is stored decides."""
    stored = stored_state(report)
    if declared is None:
        declared = stored in ("one", "head", "equal")
    return table[stored, declared]
