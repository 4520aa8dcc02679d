"""The transcripts in README and docs/tour.md are run and compared line by line; … matches anything.

After a deliberate change of the output, `UPDATE_TRANSCRIPTS=1 pytest tests/test_readme.py` writes what the commands
print now into the pages. Put the … back where numbers vary.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tiebeam.cli import VERBS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "docs" / "tour.md"]
BLOCK = re.compile(r"```console\n(.*?)```", re.S)


def transcripts(page: Path) -> list[tuple[str, str]]:
    """(command, expected output) of every `$ ` line in the page's console blocks."""
    found = []
    for block in BLOCK.findall(page.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output.rstrip()))
    return found


@pytest.mark.real
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_transcripts(page: Path, demo_directory: Path) -> None:
    """One test per page, in order: a command may use what an earlier one wrote."""
    wrong, text = [], page.read_text()
    for command, expected in transcripts(page):
        program, *arguments = shlex.split(command)
        assert program == "tiebeam"
        done = subprocess.run(
            [sys.executable, "-m", "tiebeam", *arguments], cwd=demo_directory, capture_output=True, text=True,
            env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
        shown = "\n".join(line.rstrip() for line in done.stdout.splitlines()).rstrip()
        pattern = ".*".join(re.escape(part) for part in expected.split("…"))
        if not re.fullmatch(pattern, shown, re.S):
            wrong.append(f"$ {command}\n{shown}\n{done.stderr}")
            text = text.replace(f"$ {command}\n{expected}\n", f"$ {command}\n{shown}\n")
    if os.environ.get("UPDATE_TRANSCRIPTS"):
        page.write_text(text)
    assert not wrong, "\n\n".join(wrong)


def test_every_verb_has_a_transcript() -> None:
    shown = {shlex.split(command)[1] for page in PAGES for command, _ in transcripts(page)}
    assert shown == set(VERBS)


def test_readme_is_short() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) <= 140
    assert len(transcripts(readme)) == 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []
