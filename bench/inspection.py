"""Time of `inspect`, as a call and as a command, over bare headers, safe_open, transformers and `python -c pass`.

python bench/inspection.py [--quick] [--json]
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from harness import Bench, Row, Seconds, in_child, main, process_seconds, several, timed

import tiebeam

LAYERS, WIDTH, VOCAB, INNER, KV = 22, 2048, 32000, 5632, 256  # the shape of a 1.1B llama


def write_checkpoint(where: Path, shards: int, tie: str) -> Path:
    """A llama-shaped bf16 checkpoint in sparse files: real headers; only embedding and LM head have numbers."""
    shapes: dict[str, list[int]] = {"model.embed_tokens.weight": [VOCAB, WIDTH]}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        shapes |= {
            p + "self_attn.q_proj.weight": [WIDTH, WIDTH], p + "self_attn.k_proj.weight": [KV, WIDTH],
            p + "self_attn.v_proj.weight": [KV, WIDTH], p + "self_attn.o_proj.weight": [WIDTH, WIDTH],
            p + "mlp.gate_proj.weight": [INNER, WIDTH], p + "mlp.up_proj.weight": [INNER, WIDTH],
            p + "mlp.down_proj.weight": [WIDTH, INNER],
            p + "input_layernorm.weight": [WIDTH], p + "post_attention_layernorm.weight": [WIDTH],
        }  # fmt: skip
    shapes |= {"model.norm.weight": [WIDTH], "lm_head.weight": [VOCAB, WIDTH]}
    names = list(shapes)
    groups = [names[i * len(names) // shards : (i + 1) * len(names) // shards] for i in range(shards)]
    where.mkdir(parents=True)
    weight_map = {}
    random = np.random.default_rng(0)
    matrices = {"model.embed_tokens.weight": random.integers(0, 2**15, VOCAB * WIDTH, np.uint16)}
    matrices["lm_head.weight"] = (
        matrices["model.embed_tokens.weight"] if tie == "twin" else matrices["model.embed_tokens.weight"][::-1]
    )
    for i, group in enumerate(groups, 1):
        file = f"model-{i:05d}-of-{shards:05d}.safetensors"
        at, header = 0, {}
        for name in group:
            size = int(np.prod(shapes[name])) * 2
            header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [at, at + size]}
            weight_map[name] = file
            at += size
        raw = json.dumps(header).encode()
        with open(where / file, "wb") as out:
            out.write(struct.pack("<Q", len(raw)) + raw)
            for name in group:
                if name in matrices:
                    out.seek(8 + len(raw) + header[name]["data_offsets"][0])
                    out.write(matrices[name].tobytes())
            out.truncate(8 + len(raw) + at)
    (where / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": WIDTH,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 32, "num_key_value_heads": 4,
        "tie_word_embeddings": tie == "twin", "torch_dtype": "bfloat16",
    }  # fmt: skip
    (where / "config.json").write_text(json.dumps(config))
    return where


def bare_headers(where: Path) -> int:
    """The lower bound: open every shard, read its header, parse it with the json module."""
    index = json.loads((where / "model.safetensors.index.json").read_text())
    json.loads((where / "config.json").read_text())
    tensors = 0
    for file in sorted(set(index["weight_map"].values())):
        with open(where / file, "rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            tensors += len(json.loads(handle.read(length)))
    return tensors


def safe_open_all(where: Path) -> int:
    """Open every shard with the safetensors library and read the shapes."""
    from safetensors import safe_open

    tensors = 0
    for file in sorted(where.glob("*.safetensors")):
        with safe_open(file, "numpy") as handle:
            tensors += sum(1 for name in handle.keys() if handle.get_slice(name).get_shape())  # noqa: SIM118
    return tensors


def memmap_compare(where: Path) -> bool:
    """The baseline for comparing a twin: map both ranges and compare them."""
    checkpoint = tiebeam.open_checkpoint(where)
    E, W = (checkpoint.tensors[n] for n in ("model.embed_tokens.weight", "lm_head.weight"))
    a, b = (np.memmap(where / t.file, np.uint8, "r", t.begin, (t.nbytes,)) for t in (E, W))
    return bool((a == b).all())


LOAD = """
import json, sys, time, transformers
start = time.perf_counter()
transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="bfloat16")
print(json.dumps({"seconds": time.perf_counter() - start}))
"""
IMPORTED = """
import json, sys
before = set(sys.modules)
from tiebeam.cli import main
sys.argv[1:] = ["inspect", sys.argv[1]]
sys.stdout = open("/dev/null", "w")
try:
    main()
except SystemExit:
    pass
sys.stdout = sys.__stdout__
print(json.dumps({"modules": len(set(sys.modules) - before)}))
"""


def open_rows(bench: Bench, name: str, where: Path, goal: str) -> Iterator[Row]:
    found = bench.measure(
        {
            "bare": lambda: bare_headers(where),
            "open": lambda: tiebeam.open_checkpoint(where),
            "safe_open": lambda: safe_open_all(where),
        },
        "bare", bench.budget * 0.08, judged=("open",),
    )  # fmt: skip
    yield timed(f"open, {name}", found, "open", "bare json headers", goal, job="open 3 shards; 200 shards",
                limited_by="opening every shard and parsing JSON")  # fmt: skip
    yield timed(f"open, {name}, against safe_open", found, "open", "safe_open over all shards", "<= 1.0",
                over="safe_open", limited_by="opening every shard")  # fmt: skip


def process_rows(bench: Bench, where: Path) -> Iterator[Row]:
    python = [sys.executable, "-c"]
    found = bench.measure(
        {
            "pass": lambda: process_seconds(*python, "pass"),
            "ours": lambda: process_seconds(sys.executable, "-m", "tiebeam", "inspect", str(where)),
            "numpy": lambda: process_seconds(*python, "import numpy"),
            "click": lambda: process_seconds(*python, "import click, json, struct"),
        },
        "pass", bench.budget * 0.25, judged=("ours",),
    )  # fmt: skip
    modules = in_child(IMPORTED, str(where))["modules"]
    parts = ", ".join(f"import {name} alone {found.ratio(name).value:.1f}" for name in ("numpy", "click"))
    yield timed("tiebeam inspect, the process", found, "ours", "python -c pass", "<= 5", bound=">= 1.0", limit="click",
                limited_by=f"the imports, {modules:.0f} modules; {parts}",
                job="`tiebeam inspect` process over `python -c pass`")  # fmt: skip


def rows(bench: Bench) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        untied = write_checkpoint(Path(scratch) / "untied", 3, "untied")
        many = write_checkpoint(Path(scratch) / "many", 200, "untied")
        twin = write_checkpoint(Path(scratch) / "twin", 3, "twin")
        assert tiebeam.inspect(untied).tie == "untied"
        yield from open_rows(bench, "1.1B, 3 shards", untied, "<= 1.2")
        yield from open_rows(bench, "1.1B, 200 shards", many, "<= 0.9")
        yield from process_rows(bench, untied)
        found = bench.measure(
            {"memmap": lambda: memmap_compare(twin), "ours": lambda: tiebeam.inspect(twin)},
            "memmap",
            bench.budget * 0.1,
        )
        yield timed("comparing a twin, speed", found, "ours", "numpy.memmap compare", ">= 1.0", speed=True,
                    limited_by="reading both matrices from the page cache")  # fmt: skip
        found = bench.measure(
            {"load": lambda: Seconds(in_child(LOAD, str(untied))["seconds"]), "ours": lambda: tiebeam.inspect(untied)},
            "load", 1, fewest=3, most=3, control=False, warmup=False,
        )  # fmt: skip
        yield timed("inspect, pair compared, speed", found, "ours", "loading with transformers", ">= 100", speed=True,
                    limited_by="reading both matrices up to the first difference")  # fmt: skip
        before = in_child("import tiebeam, numpy, tiebeam.inspection, tiebeam.families")["peak_rss"]
        inspect = "import sys, tiebeam; tiebeam.inspect(sys.argv[1])"
        after = [in_child(inspect, str(untied))["peak_rss"] for _ in range(2)]
        yield several("inspect, memory beyond the imports", [max(0.0, peak - before) / 1e6 for peak in after],
                      "MB", "<= 30", unit="MB", limited_by="the blocks that are compared")  # fmt: skip


if __name__ == "__main__":
    main(rows)
