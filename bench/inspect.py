"""Time of `inspect`, as a call and as a command, compared with plain header parsing, safe_open and transformers.

python bench/inspect.py [--quick] [--json]
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # the standard module `inspect` must be found before this file

import json
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from _common import Row, in_child, interleaved, main, row

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


def process_seconds(*command: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""})
    return time.perf_counter() - start


def rows(quick: bool) -> Iterator[Row]:
    rounds = 3 if quick else 9
    with tempfile.TemporaryDirectory() as scratch:
        untied = write_checkpoint(Path(scratch) / "untied", 3, "untied")
        many = write_checkpoint(Path(scratch) / "many", 200, "untied")
        twin = write_checkpoint(Path(scratch) / "twin", 3, "twin")
        assert tiebeam.inspect(untied).tie == "untied"
        for name, where in (("1.1B, 3 shards", untied), ("1.1B, 200 shards", many)):
            best = interleaved(
                {
                    "open": lambda where=where: tiebeam.open_checkpoint(where),
                    "bare": lambda where=where: bare_headers(where),
                    "safe_open": lambda where=where: safe_open_all(where),
                },
                rounds,
            )
            yield row(f"open, {name}", best["open"] / best["bare"], "bare json headers", "<= 1.5")
            yield row(f"open, {name}", best["open"] / best["safe_open"], "safe_open over all shards", "<= 1.0")
        load = (
            "import sys, time, transformers\nstart = time.perf_counter()\n"
            "transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype='bfloat16')\n"
            "import json; print(json.dumps({'seconds': time.perf_counter() - start}))"
        )
        loaded = in_child(load, str(untied))
        ours = interleaved({"inspect": lambda: tiebeam.inspect(untied)}, rounds)["inspect"]
        yield row("speed of inspect, pair compared", loaded["seconds"] / ours, "loading with transformers", ">= 100")
        before = in_child("import tiebeam, numpy, tiebeam.inspection, tiebeam.families")["peak_rss"]
        after = in_child("import sys, tiebeam; tiebeam.inspect(sys.argv[1])", str(untied))["peak_rss"]
        yield row("peak memory growth, untied", (after - before) / 30e6, "30 MB", "<= 1.0")
        best = interleaved(
            {"ours": lambda: tiebeam.inspect(twin), "memmap": lambda: memmap_compare(twin)}, 3 if quick else 5
        )
        yield row("comparing a twin, speed", best["memmap"] / best["ours"], "numpy.memmap compare", ">= 0.7")
        commands = {
            "ours": lambda: process_seconds(sys.executable, "-m", "tiebeam", "inspect", str(untied)),
            "baseline": lambda: process_seconds(sys.executable, "-c", "import numpy, safetensors"),
        }
        best = interleaved(commands, rounds)
        yield row(
            "the tiebeam inspect process",
            best["ours"] / best["baseline"],
            "python -c 'import numpy, safetensors'",
            "<= 2.5",
        )


if __name__ == "__main__":
    main(rows)
