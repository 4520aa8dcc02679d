"""Answers of a comparison with given numbers."""

from dataclasses import replace
from typing import Any

from tiebeam.compare.document import Answer, Question
from tiebeam.compare.paired_statistics import Estimate
from tiebeam.compare.verdict import answer_sentence, what_is_needed

TITLES = ("tied", "untied")
STEPS: dict[str, Any] = {"width": 256, "vocab": 2048, "steps": [300, 300], "seconds": [60.0, 63.0]}


def found(difference: float, half: float, documents: float = 0.004, seeds: float = 0.006) -> Estimate:
    errors = {"documents": documents, "seeds": seeds, "clock": 0.0}
    return Estimate(difference, difference - half, difference + half, errors)


def answer(
    difference: float = -0.04, half: float = 0.01, question: Question = "steps", width: int = 256, **changes: Any
) -> Answer:
    estimate = found(difference, half)
    at: dict[str, Any] = {**STEPS, "width": width}
    if question in ("size", "packed"):
        at = {"sizes": [400_000, 2_900_000], "widths": [64, 256]}
    made = Answer(
        question=question, first="tied", second="untied", difference=difference, ci_low=estimate.low,
        ci_high=estimate.high, includes_zero=estimate.includes_zero,
        winner=None if estimate.includes_zero else ("tied" if difference > 0 else "untied"), first_bpb=1.95,
        second_bpb=1.95 + difference, basis="measured", at=at, seeds=1, documents=33, errors=estimate.errors,
        sentence=answer_sentence(question, TITLES, estimate, (1.95, 1.95 + difference), at),
        needed=what_is_needed(estimate, 1, 5.0),
    )  # fmt: skip
    return replace(made, **changes)
