"""The lower bounds of pyproject.toml are true: the core's tests pass with the oldest versions that it allows.

The environment has no torch: no CPU build of 2.5 is in the registries, so what needs torch runs with the pinned one.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from peers import environments

ROOT = Path(__file__).parents[2]
CORE = (
    "checkpoint/test_open.py", "checkpoint/test_files.py", "tokenizer", "inspection", "test_equality.py",
    "test_fs.py", "test_pair.py", "cli/test_inspect.py", "cli/test_doctor.py", "cli/test_surgery.py",
)  # fmt: skip
MORE = ("checkpoint", "doctor", "families", "surgery", "cli", "test_budget.py", "test_inspection.py")

UNMARKED = "not slow and not real and not peer and not exhaustive"
# Not the tests of the Hub's cache (`not cache` below): they fill it by snapshot_download(endpoint=...), and
# huggingface_hub 0.26 asks the server of the first test again.

pytestmark = pytest.mark.peer


def required() -> dict[str, str]:
    """name: lowest version, of the core's dependencies and of transformers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["gguf"], *(line for line in extras["hf"] if "transformers" in line)]
    return dict(line.split(">=") for line in lines)


def run_core(parts: tuple[str, ...]) -> int:
    """Run these tests in the oldest environment; returns how many passed. None may fail."""
    python = environments.python("oldest")
    if python is None:
        pytest.skip("the oldest versions are not installed; run `python tests/peers/environments.py oldest`")
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))
    command = [
        str(python), "-m", "pytest", "-q", "-p", "peers.skip_missing", "-p", "no:cacheprovider", "-o", "addopts=",
        "--import-mode=importlib", "-k", "not cache", "-m", UNMARKED,
        *(str(ROOT / "tests" / part) for part in parts),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    return int(re.search(r"(\d+) passed", done.stdout)[1])  # type: ignore[index]


def test_the_environment_has_the_lowest_versions_that_are_allowed() -> None:
    lines = (environments.REQUIREMENTS / "oldest.txt").read_text().split()
    pinned = {name: version for name, _, version in (line.partition("==") for line in lines)}
    for name, lowest in required().items():
        assert pinned[name] in (lowest, f"{lowest}.0", f"{lowest}.0.0"), name


def test_the_core_works_with_the_oldest_versions() -> None:
    assert run_core(CORE) > 150


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_everything_that_needs_no_torch_works_with_the_oldest_versions() -> None:
    assert run_core(MORE) > 300
