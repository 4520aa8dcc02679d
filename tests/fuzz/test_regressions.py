"""Every file that once broke a reader, read again with the same memory limit."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "fuzz"
KEPT = {folder.name: len(list(folder.iterdir())) for folder in sorted((FUZZ / "regressions").glob("*"))}


@pytest.mark.parametrize("format", KEPT)
def test_past_failures_stay_fixed(format):
    command = [sys.executable, FUZZ / "run.py", "--replay", "--formats", format]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stdout + run.stderr
    row = next(line for line in run.stdout.splitlines() if line.startswith(format + " ")).split()
    assert int(row[1]) == KEPT[format]
