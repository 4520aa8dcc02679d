"""`tie --joint` on TinyLlama 1.1B, as transformers measures it on other documents; and it generates text.

It runs a model of 1.1B parameters over some 60,000 tokens, so it is not part of `make test`.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.registry import tinyllama

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.exhaustive]
MOST = {"prose": 0.05, "code": 0.05, "shakespeare": 0.08}  # nats lost per token; one plain matrix for both loses 7


def test_at_rank_d_the_model_still_works_and_its_directory_generates_text(tmp_path):
    model, texts, joint = tinyllama(), tmp_path / "texts", tmp_path / "joint"
    python, bench = sys.executable, ROOT / "bench" / "joint"
    subprocess.run([python, bench / "texts.py", texts], check=True)
    tie = [python, "-m", "tiebeam", "tie", model, joint, "--joint", "--quiet"]
    done = subprocess.run(
        [*tie, "--text", texts / "prose.calibrate.txt", "--text", texts / "code.calibrate.txt"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "parameters saved" in done.stdout
    judged = subprocess.run(
        [python, bench / "judge.py", model, joint, "--texts", texts], check=True, capture_output=True, text=True
    ).stdout
    lines = re.findall(r"\| (\w+) \| [\d,]+ \| [\d.]+ \| [\d.]+ \| ([+-][\d.]+) ± ([\d.]+)", judged)
    assert {kind for kind, _, _ in lines} == MOST.keys(), judged
    for kind, lost, interval in lines:
        assert float(lost) < MOST[kind], judged
        assert float(interval) <= 0.01, judged
    assert judged.strip().splitlines()[-1].startswith("The capital of France is"), judged
