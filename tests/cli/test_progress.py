"""Progress: a live display on a terminal, plain lines in a log, nothing when quiet."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiebeam
from tiebeam.cli import progress as module
from tiebeam.cli.progress import Progress


def test_log_has_one_line_at_the_start_and_one_at_the_end_of_a_stage(capsys):
    with Progress() as progress:
        for done in range(11):
            progress("copying", done, 10)
        progress("verifying", 0, 0)
    out, err = capsys.readouterr()
    first, second, third = err.splitlines()
    assert out == ""
    assert first == "copying: 0%"
    assert second.startswith("copying: done in 0.")
    assert third == "verifying"


def test_log_lines_have_counts_time_left_and_detail(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    progress = Progress()
    progress("training", 0, 400, unit="steps")
    clock[0] += 5
    progress("training", 5, 400, unit="steps")  # too soon for another line
    clock[0] += 25
    progress("training", 100, 400, unit="steps", detail="loss 3.21")
    clock[0] += 20
    progress("training", 1, 3_000_000_000, unit="B")
    assert capsys.readouterr().err.splitlines() == [
        "training: 0%, 0 of 400 steps",
        "training: 25%, 100 of 400 steps, 1:30 left, loss 3.21",
        "training: 0%, 1 B of 3.0 GB, 41666666:39:10 left",
    ]


def test_quiet_prints_nothing(capsys):
    with Progress(quiet=True) as progress, progress.waiting("reading"):
        progress("copying", 1, 2)
        progress.say("training", "step 1")
        progress.note("a note")
    assert capsys.readouterr() == ("", "")


def test_waiting_shows_only_what_takes_longer_than_the_delay(capsys, monkeypatch):
    monkeypatch.setattr(module, "DELAY", 0.05)
    with Progress() as progress:
        with progress.waiting("quick"):
            pass
        with progress.waiting("slow"):
            time.sleep(0.5)
    assert capsys.readouterr().err == "slow\n"


def test_text_lines_of_a_stage_are_throttled_and_final_ones_kept(capsys):
    progress = Progress()
    for step in range(5):
        progress.say("train", f"step {step}")
    progress.say("val 4", "held-out 1.2", final=True)
    assert capsys.readouterr().err.splitlines() == ["step 0", "held-out 1.2"]


PROGRAM = """
import sys, time
from tiebeam.cli.progress import Progress
progress = Progress()
for done in range(6):
    progress("copying [tensors]", done * 1000, 10_000, unit="B", detail="shard 2")
    time.sleep(0.15)
progress.note("a line that stays")
if "raise" in sys.argv:
    raise SystemExit(3)
progress.close()
print("report")
"""


@pytest.mark.parametrize("arguments", [[], ["raise"]])
def test_terminal_shows_a_bar_with_the_time_left_and_clears_it(arguments):
    pty = pytest.importorskip("pty")
    terminal, child = pty.openpty()
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "COLUMNS": "100",
        "PYTHONPATH": str(Path(tiebeam.__file__).parents[1]),
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=child,
                          env=environment, text=True, timeout=60)  # fmt: skip
    os.close(child)
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    text = shown.decode()
    assert done.stdout == ("" if arguments else "report\n")
    for expected in ("copying [tensors]", "50%", "5.0 kB of 10 kB", "shard 2", "a line that stays", "00:0"):
        assert expected in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is visible again"
    assert text.rindex("\x1b[2K") > text.rindex("copying"), "the bar is cleared"
