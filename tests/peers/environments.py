"""The environments of the peers: transformers 4 with llama.cpp's runtime, mlx-lm, quantisers, S3, Google Cloud Storage,
DeepSpeed, the oldest versions that pyproject.toml allows, llama.cpp's source.

    python tests/peers/environments.py                         build what is missing (several GB, minutes)
    python tests/peers/environments.py transformers4 mlx_lm    only these; llama_cpp is the source tree

They are built once, outside the clone: $TIEBEAM_PEERS, else $XDG_CACHE_HOME/tiebeam-peers, else ~/.cache/tiebeam-peers.
A directory's name ends in a hash of what is in it, so a changed requirement makes a new one.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import venv
from collections.abc import Sequence
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
NAMES = ("transformers4", "mlx_lm", "quantizers", "oldest", "s3", "gcs", "deepspeed")
_BUILT = ".built"
LLAMA_CPP = "xllamacpp==2026.10.11549"  # its sdist carries the llama.cpp that its wheel was built from


def root() -> Path:
    if given := os.environ.get("TIEBEAM_PEERS"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiebeam-peers"


def _directory(name: str, content: str) -> Path:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return root() / f"{name}-{hashlib.sha256(f'{version} {content}'.encode()).hexdigest()[:12]}"


def directory(name: str) -> Path:
    return _directory(name, (REQUIREMENTS / f"{name}.txt").read_text())


def python(name: str) -> Path | None:
    """The interpreter of a peer; None if its environment was not built."""
    where = directory(name)
    return where / "bin" / "python" if (where / _BUILT).exists() else None


def llama_cpp() -> Path | None:
    """llama.cpp's source tree; None if it was not fetched."""
    found = _directory("llama_cpp", LLAMA_CPP) / "llama.cpp"
    return found if (found / "convert_hf_to_gguf.py").exists() else None


def build(name: str) -> Path:
    """Build a peer's environment if it is missing; a build that does not finish counts as missing."""
    found = python(name)
    if found:
        return found
    where = directory(name)
    print(f"building {where} ...", file=sys.stderr)
    venv.create(where, with_pip=True, clear=True)
    pip = [str(where / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(REQUIREMENTS / f"{name}.txt")], check=True)
    (where / _BUILT).touch()
    return where / "bin" / "python"


def fetch_llama_cpp() -> Path:
    """Fetch the source of the llama.cpp that the pinned runtime was built from."""
    found = llama_cpp()
    if found:
        return found
    where = _directory("llama_cpp", LLAMA_CPP)
    where.mkdir(parents=True, exist_ok=True)
    print(f"fetching the source of {LLAMA_CPP} ...", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    # Not ":all:": pip would then build cmake from source as well, only to read the name of this package.
    subprocess.run([*pip, "--no-binary", LLAMA_CPP.split("==")[0], "-d", str(where), LLAMA_CPP], check=True)
    part = "/thirdparty/llama.cpp/"
    with tarfile.open(next(where.glob("*.tar.gz"))) as archive:
        for member in archive.getmembers():
            if part in member.name:
                member.name = "llama.cpp/" + member.name.split(part, 1)[1]
                archive.extract(member, where, filter="data")
    return where / "llama.cpp"


def build_all(names: Sequence[str] = (*NAMES, "llama_cpp")) -> None:
    for name in names:
        if name == "llama_cpp":
            fetch_llama_cpp()
        elif name in NAMES:
            build(name)
        else:
            sys.exit(f"there is no environment {name!r}; choose from {', '.join(NAMES)}, llama_cpp")


if __name__ == "__main__":
    build_all(sys.argv[1:] or (*NAMES, "llama_cpp"))
