"""The pre-commit hook: run `tiebeam doctor` on every model that has a file in the commit."""

from __future__ import annotations

import sys
from pathlib import Path

from tiebeam.cli import main


def models_of(files: list[str]) -> list[str]:
    """Each changed model once: a GGUF file is a model, any other file belongs to the model of its directory."""
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
