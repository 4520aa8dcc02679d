"""Claims about speed and memory in README and docs name the bench row that measures them, and that row exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = {"benchmarks.md", "cli.md", "loaders.md"}
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").glob("*.md") if p.name not in GENERATED)]
REFERENCE = re.compile(r"`bench/([a-z-]+): ([^`]+)`")
CLAIM = re.compile(
    r"\btimes (?:as fast|faster|slower|less memory)|\b\d[\d.,]*x (?:faster|slower|less)|\b(?:faster|slower) than (?!it)"
    r"|\b[Uu]nder [\d.,]+ (?:MB|GB|ms|seconds)\b|\b\d[\d.,]* of (?:the|its) (?:peak )?memory|\bpeaks? at \d"
    r"|\bpeak memory of|\bresident memory|\btokens per second|\d tokens/s|\b\d[\d.,]* (?:seconds|minutes) of CPU"
)
# Not about the speed of tiebeam, or printed by the command that the page shows.
ELSEWHERE = {
    "docs/quantize.md": "This took 229 seconds of CPU time",  # the time of the transcript above it
    "docs/reliability.md": "Left out of the comparison of contents",  # names of fields
}


def paragraphs(page: Path) -> Iterator[str]:
    """Prose and tables; what a command printed is left out."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    yield from re.split(r"\n\s*\n(?!\|)", prose)  # a table belongs to the paragraph before it


def claims() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        for paragraph in paragraphs(page):
            if CLAIM.search(paragraph) and not (name in ELSEWHERE and ELSEWHERE[name] in paragraph):
                yield name, paragraph


def rows_of_the_page() -> set[tuple[str, str]]:
    found, section = set(), ""
    for line in (ROOT / "docs" / "benchmarks.md").read_text().splitlines():
        if line.startswith("## "):
            section = line[3:].strip()
        elif line.startswith("| ") and not line.startswith("| row "):
            found.add((section, line.split("|")[1].strip()))
    return found


def test_the_pattern_finds_claims() -> None:
    """So that a test that finds none does not pass for nothing."""
    assert CLAIM.search("It is 3 times faster than cp.")
    assert CLAIM.search("Under 150 MB for any model.")
    assert len(list(claims())) >= 4


@pytest.mark.parametrize(("page", "paragraph"), [pytest.param(*c, id=f"{c[0]}-{i}") for i, c in enumerate(claims())])
def test_a_claim_names_its_bench_row(page: str, paragraph: str) -> None:
    assert REFERENCE.search(paragraph), f"{page}: add `bench/NAME: ROW` of docs/benchmarks.md to:\n{paragraph}"


def test_every_named_row_is_on_the_page() -> None:
    known = rows_of_the_page()
    assert known
    for page in PAGES:
        for match in REFERENCE.finditer(page.read_text()):
            assert (match[1], match[2]) in known, f"{page.name}: docs/benchmarks.md has no row {match[0]}"


def test_exceptions_are_still_there() -> None:
    for page, snippet in ELSEWHERE.items():
        assert snippet in (ROOT / page).read_text(), f"{page} no longer has {snippet!r}: drop it from the list"
