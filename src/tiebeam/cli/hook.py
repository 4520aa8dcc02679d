"""The pre-commit hook: from the files of a commit to the models they belong to, then `tiebeam doctor`."""

from __future__ import annotations

import sys
from pathlib import Path

from tiebeam.cli import main


def models_of(files: list[str]) -> list[str]:
    """Each touched model once: a lone GGUF file is one itself, anything else belongs to its directory."""
    models = []
    for name in files:
        path = Path(name)
        directory = path.parent
        holds_weights = any(directory.glob("*.safetensors")) or any(directory.glob("*.bin"))
        if path.suffix == ".gguf":
            models.append(name)
        elif holds_weights:
            models.append(str(directory))
    return sorted(set(models))


if __name__ == "__main__":
    models = models_of(sys.argv[1:])
    if models:
        main(["doctor", *models])
