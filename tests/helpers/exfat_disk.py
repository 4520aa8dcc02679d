"""A disk as Windows and macOS have them: names ignore case, and there are no links. exFAT in a file, mounted by FUSE.

It needs root and Debian's exfat-fuse and exfatprogs; without them the tests that use it are skipped with the reason.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def ignores_case(directory: Path) -> bool:
    (directory / "Case").touch()
    found = (directory / "cASE").exists()
    (directory / "Case").unlink()
    return found


@contextmanager
def exfat_disk(where: Path, megabytes: int = 64) -> Iterator[Path]:
    """Mount a new disk; skip the test if that cannot be done. A directory that ignores case is used as it is."""
    where.mkdir(parents=True, exist_ok=True)
    if ignores_case(where):
        yield where
        return
    if not all(map(shutil.which, ("mkfs.exfat", "mount.exfat-fuse", "losetup", "umount"))):
        pytest.skip("no disk that ignores case: exfat-fuse and exfatprogs are not installed")
    image = where / "disk.img"
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    device, mounted = _run("losetup", "--show", "--find", str(image)), where / "disk"
    mounted.mkdir()
    try:
        _run("mkfs.exfat", device)
        _run("mount.exfat-fuse", device, str(mounted))
        yield mounted
    finally:
        subprocess.run(["umount", "--lazy", str(mounted)], capture_output=True)
        subprocess.run(["losetup", "--detach", device], capture_output=True)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no disk that ignores case: {command[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
