"""A short run of the fuzzer with a fixed seed: no crash, no file over the memory limit, no unlisted disagreement."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "fuzz"
FORMATS = sorted(path.stem.removeprefix("fuzz_") for path in (FUZZ / "harnesses").glob("fuzz_*.py"))
TRIES = 400


@pytest.mark.parametrize("format", FORMATS)
def test_no_damaged_file_breaks_a_reader(format, tmp_path):
    command = [sys.executable, FUZZ / "run.py", "--formats", format, "--tries", str(TRIES), "--seed", "14"]
    command += ["--engine", "plain", "--out", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stdout + run.stderr
    row = next(line for line in run.stdout.splitlines() if line.startswith(format + " ")).split()
    tried, accepted, refused = (int(cell.replace(",", "")) for cell in row[1:4])
    assert tried == TRIES == accepted + refused
    assert accepted > 0, "every file was refused: the mutations are too coarse to test anything behind the first check"
    assert refused > 0, "no file was refused: the mutations do not damage anything"
