"""Console transcripts in Markdown pages: find them, run them, compare; … in a page matches anything."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
SOURCES = Path(__file__).parent.parent.parent / "src"


def transcripts(page: Path) -> list[tuple[str, str]]:
    """(command, expected output) of every `$ ` line in the page's console blocks."""
    found = []
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output.rstrip()))
    return found


def run_command(command: str, where: Path) -> subprocess.CompletedProcess[str]:
    """A `tiebeam` command line, in a terminal of 100 columns without colour."""
    program, *arguments = shlex.split(command)
    assert program == "tiebeam"
    return subprocess.run(
        [sys.executable, "-m", "tiebeam", *arguments], cwd=where, capture_output=True, text=True,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(SOURCES)},
    )  # fmt: skip


def is_shown(expected: str, printed: str) -> bool:
    """Whether `printed` is what the page shows."""
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def check_transcripts(page: Path, where: Path, count: int) -> None:
    """Run the page's commands in order; each exits with 0 and prints what the page shows."""
    shown = transcripts(page)
    assert len(shown) == count
    for command, expected in shown:
        done = run_command(command, where)
        assert done.returncode == 0, done.stderr
        assert is_shown(expected, done.stdout.rstrip()), done.stdout
