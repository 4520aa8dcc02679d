"""The top of report.html: the sentences of the verdict, and the three questions with their intervals.

The sentences are those of the verdict, word for word as the terminal and the studio show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tiebeam._html import escape
from tiebeam.compare.claims import MARGIN
from tiebeam.compare.report_tables import dot, signed, table

QUESTIONS = {
    "steps": "equal steps",
    "time": "equal time",
    "size": "equal size (parameters)",
    "packed": "equal size (packed bytes)",
}
_GREY = "var(--strong-line)"


def verdict_list(document: Mapping[str, Any]) -> str:
    """The sentences of the verdict, each with the colour of the variant that it names better."""
    colours = _colours(document)
    answers = _answers(document).values()
    items = []
    for sentence in document["verdict"]["sentences"]:
        winners = [a["winner"] for a in answers if a["sentence"] and sentence.startswith(a["sentence"])]
        colour = colours.get(winners[0] if winners else "", ("", _GREY))[1]
        items.append(f'<li style="border-color:{escape(colour)}">{escape(sentence)}</li>')
    return f'<ul class="verdict">{"".join(items)}</ul>'


def answer_table(document: Mapping[str, Any]) -> str:
    """The three questions about the two main variants: losses, difference, interval, and whether it includes 0."""
    answers = _answers(document)
    if not answers:
        return ""
    colours = _colours(document)
    first, second = next((answer["first"], answer["second"]) for answer in answers.values())
    span = _span(answers.values())
    rows = []
    for question, answer in answers.items():
        rows.append(
            [
                f"At {escape(QUESTIONS[question])}",
                f"{answer['first_bpb']:.4f}",
                f"{answer['second_bpb']:.4f}",
                signed(answer["difference"]),
                f"{signed(answer['ci_low'])} to {signed(answer['ci_high'])}",
                f'<td class="forest">{interval_mark(answer, span, colours)}</td>',
                f'<td class="says">{_says(answer, colours)}</td>',
            ]
        )
    names = [escape(_title(colours, name)) for name in (first, second)]
    heads = ["Bits per byte", names[0], names[1], "difference", "95% interval", "", ""]
    better = '<span class="roomy"> better</span>'
    ends = f'<td><div class="forest-ends"><span>← {names[1]}{better}</span><span>{names[0]}{better} →</span></div></td>'
    found = table(heads, rows)
    found = found.replace("<td></td><td></td></tr></thead>", f'{ends}<td class="says"></td></tr></thead>')
    told = " ".join(document["verdict"]["sentences"])
    needed = dict.fromkeys(answer["needed"] for answer in answers.values() if answer["needed"] not in told)
    notes = [
        f"The difference is {names[1]} minus {names[0]}: above 0, {names[0]} is better.",
        escape(document["verdict"]["note"]),
        escape(_interpolated(answers)),
        *(escape(sentence) for sentence in needed),
    ]
    return f'{found}<p class="note">{" ".join(note for note in notes if note)}</p>'


def plan_answer(document: Mapping[str, Any]) -> Iterable[str]:
    """The answer for the user's own shape: what is measured, what is extrapolation, and what known models do."""
    plan = document.get("plan")
    if plan:
        yield f"<h2>For {escape(plan['title'])}</h2>"
        yield "".join(f"<p>{escape(sentence)}</p>" for sentence in plan["sentences"])


def variant_gaps(document: Mapping[str, Any]) -> Iterable[str]:
    """Every other variant against the baseline, if there are several."""
    by_variant = document.get("by_variant") or {}
    if len(by_variant) < 2:
        return
    colours = _colours(document)
    baseline = next(answer["first"] for answers in by_variant.values() for answer in answers.values())
    yield f"<h2>Every variant against {escape(_title(colours, baseline))}</h2>"
    asked = [q for q in QUESTIONS if any(q in answers for answers in by_variant.values())]
    for question in asked:
        found = {name: answers[question] for name, answers in by_variant.items() if question in answers}
        span = _span(found.values())
        rows = [
            [
                f"{dot(colours.get(name, ('', _GREY))[1])}{escape(_title(colours, name))}",
                signed(answer["difference"]),
                f"{signed(answer['ci_low'])} to {signed(answer['ci_high'])}",
                f'<td class="forest">{interval_mark(answer, span, colours)}</td>',
                f'<td class="says">{_says(answer, colours)}</td>',
            ]
            for name, answer in sorted(found.items(), key=lambda item: float(item[1]["difference"]))
        ]
        caption = f"At {QUESTIONS[question]}: bits per byte minus those of {_title(colours, baseline)}; best first"
        yield table(["", "difference", "95% interval", "", ""], rows, caption=caption)


def claims(document: Mapping[str, Any]) -> Iterable[str]:
    """What the sources of the variants say, and whether it holds here, if there is more than one claim."""
    found = document.get("claims") or []
    if len(found) < 2:
        return
    colours = _colours(document)
    yield "<h2>Published claims</h2>"
    rows = [
        [
            f"{dot(colours.get(c['variant'], ('', _GREY))[1])}{escape(_title(colours, c['variant']))}",
            f'<td class="says wraps">{escape(c["claim"])} ({escape(c["source"])})</td>',
            escape(_title(colours, c["against"])),
            signed(c["difference"]),
            f"{signed(c['ci_low'])} to {signed(c['ci_high'])}",
            f"{c['params']:+,}",
            f'<td class="says">{escape(c["verdict"])}</td>',
        ]
        for c in found
    ]
    yield table(["", "claim", "against", "bits per byte", "95% interval", "parameters", "verdict"], rows)
    yield (
        '<p class="note">At equal steps and the largest width, the variant minus what it modifies. A claim of a lower '
        f"loss holds if the interval is below 0, a claim of no higher loss if it is below {MARGIN:+g}. The intervals "
        "are not corrected for their number.</p>"
    )


def interval_mark(answer: Mapping[str, Any], span: float, colours: Mapping[str, tuple[str, str]]) -> str:
    """An interval as a drawing on a scale from -span to span, with a line at 0."""
    at = [100 + 96 * max(-1.0, min(1.0, answer[key] / span)) for key in ("ci_low", "difference", "ci_high")]
    low, middle, high = (f"{x:.1f}" for x in at)
    colour = _GREY if answer["includes_zero"] else colours.get(answer["winner"], ("", _GREY))[1]
    return (
        '<svg viewBox="0 0 200 32" preserveAspectRatio="none" aria-hidden="true">'
        '<line x1="100" x2="100" y1="0" y2="32" stroke="var(--strong-line)" vector-effect="non-scaling-stroke"/>'
        f'<line x1="{low}" x2="{high}" y1="16" y2="16" stroke="{escape(colour)}" stroke-width="6" '
        'stroke-opacity=".45" vector-effect="non-scaling-stroke"/>'
        f'<line x1="{middle}" x2="{middle}" y1="8" y2="24" stroke="{escape(colour)}" stroke-width="3.5" '
        'vector-effect="non-scaling-stroke"/></svg>'
    )


def _says(answer: Mapping[str, Any], colours: Mapping[str, tuple[str, str]]) -> str:
    if answer["includes_zero"]:
        return "includes 0"
    if answer["winner"] is None:
        return "excludes 0, too small to call"
    title, colour = colours.get(answer["winner"], (answer["winner"], _GREY))
    return f"excludes 0: {dot(colour)}{escape(title)} better"


def _interpolated(answers: Mapping[str, Mapping[str, Any]]) -> str:
    """Which losses were interpolated between measured points."""
    between = [QUESTIONS[q] for q, answer in answers.items() if answer["basis"] == "interpolated"]
    return f"Interpolated between measured points: {', '.join(between)}." if between else ""


def _answers(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The answers that the document has, in the order of QUESTIONS."""
    found = document.get("answers") or {}
    return {question: found[question] for question in QUESTIONS if found.get(question)}


def _span(answers: Iterable[Mapping[str, Any]]) -> float:
    return max((abs(answer[key]) for answer in answers for key in ("ci_low", "ci_high")), default=0.0) or 1.0


def _colours(document: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    variants: Sequence[Mapping[str, Any]] = document["variants"]
    return {v["name"]: (v["title"], v["colour"]) for v in variants}


def _title(colours: Mapping[str, tuple[str, str]], name: str) -> str:
    return colours.get(name, (name, ""))[0]
