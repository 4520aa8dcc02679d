"""A few kills of every verb that writes, at fixed calls; `make kill` kills at all of them."""

import re
import subprocess
import sys
from pathlib import Path

KILL = Path(__file__).parents[2] / "fuzz" / "kill.py"


def test_no_kill_loses_or_leaves_anything() -> None:
    done = subprocess.run(
        [sys.executable, str(KILL), "--per-verb", "2", "--kills", "60"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (total,) = re.findall(r"^all .*$", done.stdout, re.MULTILINE)
    _, _, kills, *_, losses, strays = total.split()
    assert (int(kills), losses, strays) == (60, "0", "0")
