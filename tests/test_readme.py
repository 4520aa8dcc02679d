"""The transcripts in README and docs/tour.md are run and compared line by line; … matches anything.

After a deliberate change of the output, `UPDATE_TRANSCRIPTS=1 pytest tests/test_readme.py` writes what the commands
print now into the pages. Put the … back where numbers vary.
"""

import os
import re
import shlex
from pathlib import Path

import pytest

from helpers.transcripts import is_shown, run_command, transcripts
from tiebeam.cli import VERBS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "docs" / "tour.md"]


@pytest.mark.real
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_transcripts(page: Path, demo_directory: Path) -> None:
    """One test per page, in order: a command may use what an earlier one wrote."""
    wrong, text = [], page.read_text()
    for command, expected in transcripts(page):
        done = run_command(command, demo_directory)
        shown = "\n".join(line.rstrip() for line in done.stdout.splitlines()).rstrip()
        if not is_shown(expected, shown):
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
