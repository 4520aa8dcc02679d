"""The shape of report.json.

The keys of 0.1 stay: `verdict`, `variants`, `runs`, `seeds`, `match`, `anchor`, `alignment`, `bigrams`, `heat`,
`samples`, `corpus`, `command`, `machine`. `variants` and `runs` are those of the widest model (of the first
vocabulary). New keys:

    answers       {"steps": Answer, "time": Answer, "size": Answer, "packed": Answer}: the three questions about the
                  headline pair. "size" is at equal parameters, "packed" at equal packed bytes; both may be missing
    by_variant    {variant: {"steps": Answer, ...}}: every other variant against the baseline
    claims        [Claim]: each variant against the one that it modifies; does its source's claim hold? (claims.py)
    ladder        Ladder: one cell per width, vocabulary, variant and seed, and the gap at every width
    sweep         learning rate sweep, or null (see learning_rate_sweep.py)
    plan          the answer for the user's own shape, or null (see plan_answer.py)
    verdict       as in 0.1, with three `sentences`: equal steps, equal time, equal size

All numbers called bpb are held-out bits per byte on the same held-out windows: at every check, at the end, for every
variant and width. A difference is the second variant minus the first, so above 0 the first one is better.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Question = Literal["steps", "time", "size", "packed"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One question about two variants: the difference, its 95% confidence interval, and a sentence."""

    question: Question
    first: str
    second: str
    difference: float
    ci_low: float
    ci_high: float
    includes_zero: bool
    winner: str | None
    first_bpb: float
    second_bpb: float
    basis: Literal["measured", "interpolated"]
    """Whether both losses were measured at the matched point, or one was interpolated on its curve or ladder."""
    at: dict[str, Any]
    """The matched point: {"width", "vocab", "steps": [first, second], "seconds": [...]}, or
    {"sizes": [...]} with the parameter counts (or packed bytes) where the two ladders were compared. At equal steps
    also "halfway": {"step", "difference"}, the difference in the middle of the runs."""
    seeds: int
    documents: int
    errors: dict[str, float]
    """Standard errors that make up the interval: "documents", "seeds", "clock"."""
    sentence: str
    needed: str
    """What would settle it if the interval includes 0, else an empty string."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Check:
    """A held-out check of a run, on the same windows every time."""

    step: int
    seconds: float
    """Training seconds by the run's own clock, without waiting and without checks."""
    tokens: int
    bpb: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the ladder: a width, a vocabulary, a variant and a seed."""

    name: str
    width: int
    vocab: int
    variant: str
    seed: int
    params: int
    non_embedding: int
    head_share: float
    """One vocabulary matrix over the untied total."""
    state_bytes: int
    """Weights, gradients and optimizer states, by arithmetic."""
    peak_bytes: int | None
    """Peak memory of training, measured in a subprocess if asked for."""
    packed_bytes: int
    disk_bytes: int
    steps: int
    seconds: float
    tokens: int
    tokens_per_second: float
    bpb: float
    """At the last check."""
    checks: tuple[Check, ...]
    curve: tuple[dict[str, Any], ...]
    """Training loss: step, seconds, tokens, loss (nats per token)."""
    rates: dict[str, Any]
    """Peak learning rates by role."""
    peak_rates: str
    """Those that the run uses, in words."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Gap:
    """The difference of a variant to the baseline at one width, with its interval: a point of the ladder plot."""

    variant: str
    width: int
    vocab: int
    head_share: float
    steps: Answer
    time: Answer

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ladder:
    """Every run, and the gap to the baseline at every width and vocabulary."""

    baseline: str
    widths: tuple[int, ...]
    vocabs: tuple[int, ...]
    seeds: tuple[int, ...]
    held_out: dict[str, Any]
    """The windows of every check: {"tokens", "documents", "bytes"}."""
    cells: tuple[Cell, ...]
    gaps: tuple[Gap, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
