"""The words of a comparison: one sentence per question, and the verdict of three sentences.

This is the only place where an answer is put into words; the terminal, the report and the studio show `sentences`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tiebeam.budget import human, human_bytes
from tiebeam.compare.document import Answer, Gap
from tiebeam.compare.paired_statistics import SEED_ERROR, Estimate, seeds_needed

SHRUNK = 0.9  # of the difference halfway: below it, a comparison says that the difference is shrinking


@dataclass(frozen=True, slots=True)
class Verdict:
    """`difference` is bits per byte of the second variant minus the first: positive means the first is better."""

    first: str
    second: str
    difference: float | None
    half_width: float | None
    """Of the 95% confidence interval."""
    seeds: int
    winner: str | None
    sentences: tuple[str, ...]
    """Equal steps, equal time, equal size."""
    note: str = ""
    """What the intervals contain."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_verdict(answers: Mapping[str, Answer], gaps: Sequence[Gap], main: str = "steps") -> Verdict:
    """The verdict on a pair: its three sentences, and the numbers of the `main` question."""
    head = answers[main]
    others = [gap for gap in gaps if gap.width != answers["steps"].at["width"]]
    sentences = [
        _joined(answers["steps"].sentence, by_width([g.steps for g in others]), answers["steps"].needed),
        _joined(answers["time"].sentence, by_width([g.time for g in others]), answers["time"].needed),
    ]
    if size := answers.get("size"):
        packed = answers.get("packed")
        sentences.append(_joined(size.sentence, size.needed, packed_clause(packed) if packed else ""))
    else:
        sentences.append("Equal size cannot be answered from one width: use several widths whose sizes overlap.")
    half = (head.ci_high - head.ci_low) / 2
    note = _joined(certainty(head), shrinking(answers["steps"]))
    return Verdict(head.first, head.second, head.difference, half, head.seeds, head.winner, tuple(sentences), note)


def only_one(variant: str, title: str, bpb: float, seeds: int) -> Verdict:
    """The verdict of a comparison that trained one variant."""
    return Verdict(variant, "", None, None, seeds, None, (
        f"Only {title} was trained: {bpb:.4f} bits per byte.",
        "There is no second variant to compare with; use variants tied,untied.",
    ))  # fmt: skip


def answer_sentence(
    question: str, titles: tuple[str, str], found: Estimate, bpb: tuple[float, float], at: Mapping[str, Any]
) -> str:
    """'At equal steps (300), width 256: untied is better by 0.0412 bits per byte (95% CI 0.0301 to 0.0523) ...'"""
    where = {"steps": _steps, "time": _time, "size": _size, "packed": _packed}[question](titles, at)
    if found.includes_zero:
        return (
            f"{where}: no clear difference, {titles[1]} minus {titles[0]} is {found.difference:+.4f} bits per byte "
            f"(95% CI {found.low:+.4f} to {found.high:+.4f}, includes 0)."
        )
    best = 0 if found.difference > 0 else 1
    low, high = sorted((abs(found.low), abs(found.high)))
    return (
        f"{where}: {titles[best]} is better than {titles[1 - best]} by {abs(found.difference):.4f} bits per byte "
        f"(95% CI {low:.4f} to {high:.4f}), {bpb[best]:.4f} vs {bpb[1 - best]:.4f}."
    )


def running_text(titles: tuple[str, str], found: Estimate, width: int, step: int) -> str:
    """'width 64, step 150: untied better than tied by 0.0612 (95% CI 0.0410 to 0.0814)'"""
    head = f"width {width}, step {step:,}"
    if found.includes_zero:
        return f"{head}: {titles[1]} minus {titles[0]} {found.difference:+.4f} (95% CI includes 0)"
    best = 0 if found.difference > 0 else 1
    low, high = sorted((abs(found.low), abs(found.high)))
    better = f"{titles[best]} better than {titles[1 - best]} by {abs(found.difference):.4f}"
    return f"{head}: {better} (95% CI {low:.4f} to {high:.4f})"


def what_is_needed(found: Estimate, seeds: int, minutes: float) -> str:
    """What would settle a difference whose interval includes 0; '' if it is clear."""
    if not found.includes_zero:
        return ""
    needed = seeds_needed(found, seeds)
    if needed is not None:
        time = minutes * needed / seeds
        return f"If it is real, about {needed} seeds ({_duration(time)} of training) would show it."
    errors = found.errors
    if errors["documents"] >= max(errors["seeds"], errors["clock"]) and found.difference:
        factor = (2.1 * errors["documents"] / found.difference) ** 2
        if factor <= 100:
            return f"More seeds would not settle it; about {factor:.0f} times the held-out text would."
    return "More than 100 seeds would be needed to tell it from 0: take the two as equal at this size."


def by_width(answers: Sequence[Answer]) -> str:
    """'Width 64: untied by 0.0601; width 128: no clear difference.'"""
    parts = []
    for answer in answers:
        result = "no clear difference" if answer.winner is None else f"{answer.winner} by {abs(answer.difference):.4f}"
        parts.append(f"width {answer.at['width']}: {result}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def packed_clause(packed: Answer) -> str:
    if packed.includes_zero:
        return f"At equal packed size (int8, embeddings fp16): no clear difference ({packed.difference:+.4f})."
    return f"At equal packed size (int8, embeddings fp16): {packed.winner} by {abs(packed.difference):.4f}."


def certainty(answer: Answer) -> str:
    """What the intervals contain, and what they do not."""
    over = f"{answer.documents} held-out documents"
    scope = "They hold for this text, these sizes and this training length."
    if answer.seeds > 1:
        return f"Intervals: 95%, paired over {over} and {answer.seeds} seeds. {scope}"
    return (
        f"Intervals: 95%, paired over {over}; one seed, so they allow for a variation between seeds of "
        f"{SEED_ERROR:g} bits per byte instead of measuring it. {scope}"
    )


def shrinking(steps: Answer) -> str:
    """A warning if a clear difference was much larger, or had the other sign, in the middle of the run; else ''."""
    halfway = steps.at.get("halfway")
    if halfway is None or steps.includes_zero:
        return ""
    before, now = halfway["difference"], steps.difference
    if before * now > 0 and abs(now) > SHRUNK * abs(before):
        return ""
    how = "is shrinking" if before * now > 0 else "has changed its sign"
    return (
        f"The difference {how}, from {before:+.4f} at step {halfway['step']:,.0f} to {now:+.4f} at step "
        f"{steps.at['steps'][0]:,}: longer training may change the answer."
    )


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _steps(titles: tuple[str, str], at: Mapping[str, Any]) -> str:
    return f"At equal steps ({at['steps'][0]:,}), width {at['width']}"


def _time(titles: tuple[str, str], at: Mapping[str, Any]) -> str:
    steps = " and ".join(f"{title} {step:,}" for title, step in zip(titles, at["steps"], strict=True))
    return f"At equal time ({min(at['seconds']):.0f} s of training: {steps} steps), width {at['width']}"


def _size(titles: tuple[str, str], at: Mapping[str, Any]) -> str:
    return f"At equal size ({_range(at['sizes'], human)} parameters)"


def _packed(titles: tuple[str, str], at: Mapping[str, Any]) -> str:
    return f"At equal packed size ({_range(at['sizes'], human_bytes)})"


def _range(sizes: Sequence[int], write: Any) -> str:
    low, high = write(min(sizes)), write(max(sizes))
    return low if low == high else f"{low} to {high}"


def _duration(minutes: float) -> str:
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
