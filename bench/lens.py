"""`tiebeam.Lens` on an untied pair of 128,256 x 4,096 in bf16: time after reading the tables, and peak memory.

python bench/lens.py [--quick] [--json]

The pass over the rows reads them and sums five products of the two tables; "after reading" is what is solved from the
sums. What limits the pass is these products, and what limits reading is every row once as float32; both are measured in
processes of their own.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from harness import Bench, Row, in_child, main, row

LARGE, SMALL = (128_256, 4_096), (32_000, 1_024)
JOB = "lens on 128,256 x 4,096"

LENS = """
import json, sys, time
start, last = time.perf_counter(), 0.0
import tiebeam
def progress(stage, done, total):
    global last
    if "reading" in stage:
        last = time.perf_counter()
lens = tiebeam.Lens.open(sys.argv[1], progress=progress)
text = str(lens)
end = time.perf_counter()
print(json.dumps({"after": end - (last or start), "whole": end - start}))
"""
READ = """
import json, sys, time
import tiebeam
model = tiebeam.open_checkpoint(sys.argv[1])
start = time.perf_counter()
for info in model.tensors.values():
    if len(info.shape) == 2:
        for at in range(0, info.shape[0], 4096):
            model.rows(info.name, at, min(at + 4096, info.shape[0]))
print(json.dumps({"seconds": time.perf_counter() - start}))
"""


# As many operations as the sums: two products of different tables, three of a table with itself, which take half.
PRODUCTS = """
import json, sys, time
import numpy as np
rows, vocab, dim = 4096, int(sys.argv[1]), int(sys.argv[2])
one, two = (np.random.default_rng(seed).standard_normal((rows, dim), np.float32) for seed in (0, 1))
out = np.empty((dim, dim), np.float32)
seconds = []
for _ in range(2):
    start = time.perf_counter()
    np.matmul(one.T, two, out=out)
    half = time.perf_counter()
    np.matmul(one.T, one, out=out)
    seconds.append(2 * (half - start) + 3 * (time.perf_counter() - half))
print(json.dumps({"seconds": min(seconds) * vocab / rows}))
"""


def write_pair(where: Path, vocab: int, dim: int) -> Path:
    """A checkpoint of embedding, head and final norm in bf16; the values are normal with a falling spectrum.

    It declares a layer, because the decoder refuses a model without one and transformers would apply the norm: its
    imports take 500 MB.
    """
    shapes = {"model.embed_tokens.weight": [vocab, dim], "model.norm.weight": [dim], "lm_head.weight": [vocab, dim]}
    at, header = 0, {}
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    random = np.random.default_rng(0)
    scale = (np.arange(1, dim + 1, dtype=np.float32) ** -0.5)[None]
    where.mkdir()
    with open(where / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(raw)) + raw)
        for shape in shapes.values():
            rows = shape[0] if len(shape) == 2 else 1
            for start in range(0, rows, 8192):
                block = random.standard_normal((min(8192, rows - start), dim), np.float32) * scale
                out.write((block.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": dim,
              "intermediate_size": dim, "num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 8,
              "tie_word_embeddings": False, "torch_dtype": "bfloat16"}  # fmt: skip
    (where / "config.json").write_text(json.dumps(config))
    return where


def rows(bench: Bench) -> Iterator[Row]:
    vocab, dim = SMALL if bench.quick else LARGE
    name = f"lens, {vocab:,} x {dim:,}"
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as scratch:
        where = write_pair(Path(scratch) / "pair", vocab, dim)
        reading = in_child(READ, str(where))["seconds"]
        summing = in_child(PRODUCTS, str(vocab), str(dim))["seconds"]
        limit = f"the sums' products alone take {summing:.0f} s, reading every row once {reading:.1f} s"
        try:
            found = in_time(str(where), max(60.0, bench.left - 5.0))
        except subprocess.TimeoutExpired as late:
            yield row(f"{name}, after reading and summing the rows", float(late.timeout), "s, and was stopped then",
                      "<= 60", unit="s", limited_by=limit, job=JOB)  # fmt: skip
            return
        yield row(f"{name}, after reading and summing the rows", found["after"], "s", "<= 60", unit="s",
                  limited_by="the eigenvalues of D x D matrices", job=JOB)  # fmt: skip
        yield row(f"{name}, reading and summing the rows", found["whole"] - found["after"], "s", unit="s",
                  limited_by=limit, limit=summing + reading)  # fmt: skip
        sums = f"two sums of {2 * dim:,} x {2 * dim:,} in float64 are {64 * dim * dim / 1e9:.1f} GB"
        yield row(f"{name}, peak memory", found["peak_rss"] / 1e9, "GB", "<= 1.5", unit="GB", limited_by=sums, job=JOB)


def in_time(where: str, seconds: float) -> dict[str, float]:
    """As in_child, with an end."""
    from harness.processes import _PEAK

    done = subprocess.run([sys.executable, "-c", LENS + _PEAK, where], capture_output=True, text=True, timeout=seconds,
                          check=True)  # fmt: skip
    return {**json.loads(done.stdout), **json.loads(done.stderr.strip().splitlines()[-1])}


if __name__ == "__main__":
    main(rows)
