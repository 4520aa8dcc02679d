"""Sources for the verbs that write, and disks that fail: a small one, a read-only one. Both need the right to mount;
without it their tests are skipped."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.kill_sources import write_sources
from helpers.small_corpus import small_corpus

_FLAGS = {"ro": 1}


def _mount(where: Path, options: str) -> None:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of three megabytes."""
    where = tmp_path / "disk"
    where.mkdir()
    if os.name != "posix":
        pytest.skip("a tmpfs needs Linux")
    try:
        _mount(where, "size=3m")
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    try:
        yield where
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(where), 2)  # MNT_DETACH


@pytest.fixture
def leave_free(disk: Path) -> Callable[[int], None]:
    """Fill the disk up to so many bytes."""

    def fill(count: int) -> None:
        (disk / "filler").unlink(missing_ok=True)
        free = os.statvfs(disk)
        size = free.f_bavail * free.f_frsize - count
        with open(disk / "filler", "wb") as handle:
            handle.write(bytes(max(0, size)))

    return fill


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("shared")
    small_corpus(tmp_path_factory).path.rename(where / "corpus")
    write_sources(where)
    return where
