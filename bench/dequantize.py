"""Opening a GGUF for the decoder against the gguf package's own dequantisation of the same tensors, and its memory.

Two real models: SmolLM2 135M (Q4_1, Q8_0) and TinyLlama 1.1B (IQ2_XXS, Q2_K, Q4_K, Q5_K; 4.4 GB in float32). Their
files are found in $TIEBEAM_MODELS, a directory; one that is not there is left out. --quick takes a few tensors of each
type instead of whole models.

python bench/dequantize.py [--quick] [--json]
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py is named like a standard module, and the standard one must win

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from _common import Row, in_child, interleaved, main, row
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from tiebeam.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from tiebeam.decode import Decoder
from tiebeam.decode.numpy.load_weights import Weights

FILES = ("SmolLM2-135M-Instruct.Q4_1.gguf", "tinyllama-1.1b-chat.IQ2_XXS.gguf")
SAMPLE = 1 << 24  # weights of each type in a quick run


def theirs(model: Checkpoint, tensors: list[TensorInfo]) -> None:
    for info in tensors:
        dequantize(np.frombuffer(model.read_bytes(info.name), np.uint8), GGMLQuantizationType[info.dtype])


def ours(model: Checkpoint, tensors: list[TensorInfo]) -> None:
    """As `Decoder.open` loads matrices: in pieces, in threads."""
    weights = Weights(model)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as readers:
        list(readers.map(lambda info: weights.matrix(info.name, info.shape).shape, tensors))


def sample(model: Checkpoint) -> list[TensorInfo]:
    """The first tensors of each quantised type, to about SAMPLE weights."""
    chosen: dict[str, list[TensorInfo]] = {}
    for info in model.tensors.values():
        mine = chosen.setdefault(info.dtype, [])
        if len(info.shape) == 2 and info.dtype not in ("F32", "F16") and sum(t.size for t in mine) < SAMPLE:
            mine.append(info)
    return [info for mine in chosen.values() for info in mine]


def check(model: Checkpoint, tensors: list[TensorInfo]) -> None:
    """The same numbers to the bit, on the first rows of every tensor."""
    for info in tensors:
        raw = np.frombuffer(model.read_bytes(info.name, 0, info.nbytes // info.shape[0] * 8), np.uint8)
        expected = dequantize(raw, GGMLQuantizationType[info.dtype])
        assert np.array_equal(model.rows(info.name, 0, 8).reshape(-1), expected), info.name


def rows(quick: bool) -> Iterator[Row]:
    home = Path(os.environ.get("TIEBEAM_MODELS", "models"))
    for file in FILES:
        if not (home / file).exists():
            print(f"{home / file} is missing; set TIEBEAM_MODELS", file=sys.stderr)
            continue
        model, name = open_checkpoint(home / file), file.partition(".")[0]
        matrices = [info for info in model.tensors.values() if len(info.shape) == 2]
        check(model, matrices)
        chosen = sample(model) if quick else matrices
        load = partial(ours, model, chosen) if quick else partial(Decoder.open, model)
        sides = {"ours": load, "theirs": partial(theirs, model, chosen)}
        best = interleaved(sides, rounds=3, warmup=0 if quick else 1)
        what = "some tensors of each type" if quick else "the whole model"
        yield row(f"{name}: {what}", best["theirs"] / best["ours"], "the gguf package's dequantize, speed", ">= 4")
        if not quick:
            weights = 4 * sum(info.size for info in model.tensors.values())
            peak = in_child(OPEN, str(home / file))["peak_rss"]
            yield row(f"{name}: peak memory", peak / (weights + 200e6), "float32 weights + 200 MB", "<= 1.0")


OPEN = """
import sys
from tiebeam.decode import Decoder
Decoder.open(sys.argv[1])
"""

if __name__ == "__main__":
    main(rows)
