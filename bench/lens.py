"""`tiebeam.Lens` on an untied pair of 128,256 x 4,096 in bf16: time after reading the tables, and peak memory.

python bench/lens.py [--quick] [--json]

Reading is what the progress calls so; in it the sums over all rows are made. What limits that is reading every row once
as float32, measured in a process of its own.
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


def write_pair(where: Path, vocab: int, dim: int) -> Path:
    """A checkpoint of embedding, head and final norm in bf16; the values are normal with a falling spectrum."""
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
              "intermediate_size": dim, "num_hidden_layers": 0, "num_attention_heads": 32, "num_key_value_heads": 8,
              "tie_word_embeddings": False, "torch_dtype": "bfloat16"}  # fmt: skip
    (where / "config.json").write_text(json.dumps(config))
    return where


def rows(bench: Bench) -> Iterator[Row]:
    vocab, dim = SMALL if bench.quick else LARGE
    name = f"lens, {vocab:,} x {dim:,}"
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as scratch:
        where = write_pair(Path(scratch) / "pair", vocab, dim)
        reading = in_child(READ, str(where))["seconds"]
        limit = f"2 V D^2 products; reading every row once takes {reading:.1f} s"
        try:
            found = in_time(str(where), max(60.0, bench.left))
        except subprocess.TimeoutExpired as late:
            yield row(f"{name}, after reading", float(late.timeout), "s, and was stopped then", "<= 60", unit="s",
                      limited_by=limit, job=JOB)  # fmt: skip
            return
        yield row(f"{name}, after reading", found["after"], "s", "<= 60", unit="s", limited_by=limit, job=JOB)
        yield row(f"{name}, with reading", found["whole"], "s", unit="s", limited_by=limit)
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
