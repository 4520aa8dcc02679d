"""Peers that are not among the development packages: installed once, each into a directory of its own.

They are installed without their dependencies, which are those of the development environment, and only the bench that
compares with a peer sees its directory. A peer that cannot be had, or does not run on a CPU, is a printed line.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = {
    "cut_cross_entropy": "cut-cross-entropy==25.1.1",  # its import needs triton, also for the CPU path
    "liger_kernel": "liger-kernel==0.8.5",
    "xllamacpp": "xllamacpp==2026.10.11549",  # llama.cpp for Python
}
ALSO = {"cut_cross_entropy": ("triton==3.9.0",), "liger_kernel": ("triton==3.9.0",)}


class Missing(Exception):
    """The peer is not there; the text says why, in one line."""


def root() -> Path:
    if given := os.environ.get("TIEBEAM_PEERS"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiebeam-peers"


def directory(module: str) -> Path:
    """Where the peer is installed; installs it if needed.

    Raises Missing if the registry does not give it.
    """
    requirement, also = REQUIREMENTS[module], ALSO.get(module, ())
    name = "-".join([requirement, *also, f"{sys.version_info.major}.{sys.version_info.minor}"])
    where = root() / f"bench-{name.replace('==', '-')}"
    if not (where / module).exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
        pip += ["--only-binary", ":all:", "--target", str(where)]
        done = subprocess.run([*pip, requirement, *also], capture_output=True, text=True)
        if done.returncode:
            raise Missing(f"without {requirement}: {_last_line(done.stderr)}")
    return where


def load(module: str) -> None:
    """Make the peer importable in this process.

    Raises Missing if it cannot be installed or imported here.
    """
    where = str(directory(module))
    if where not in sys.path:
        sys.path.append(where)
    try:
        importlib.import_module(module)
    except Exception as problem:
        sys.path.remove(where)
        raise Missing(f"without {REQUIREMENTS[module]}: {_last_line(str(problem))}") from None


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no reason was given"
