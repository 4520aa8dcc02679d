"""The README's transcripts are run and compared, line by line; … in a transcript stands for whatever comes there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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
def test_readme_transcripts(demo_directory):
    """One test, in order: each command finds what the one before it left."""
    wrong = []
    for command, expected in transcripts(ROOT / "README.md"):
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
    assert not wrong, "\n\n".join(wrong)


def test_every_verb_has_a_transcript():
    from tiebeam.cli import VERBS

    shown = {shlex.split(command)[1] for command, _ in transcripts(ROOT / "README.md")}
    assert shown == set(VERBS)
