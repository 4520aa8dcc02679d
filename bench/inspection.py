"""Time of `inspect`, as a call and as a command, over bare headers, safe_open, transformers and `python -c pass`.

python bench/inspection.py [--quick] [--json]
"""

from __future__ import annotations

import json
import os
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import Bench, Row, Seconds, in_child, main, process_seconds, several, timed

import tiebeam

LAYERS, WIDTH, VOCAB, INNER, KV = 22, 2048, 32000, 5632, 256  # the shape of a 1.1B llama


def write_checkpoint(where: Path, shards: int, tie: str) -> Path:
    """A llama-shaped bf16 checkpoint in sparse files: real headers; only embedding and LM head have numbers.

    `tie` is untied, twin (two equal matrices) or shared (no LM head is stored).
    """
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
    shapes |= {"model.norm.weight": [WIDTH]}
    if tie != "shared":
        shapes["lm_head.weight"] = [VOCAB, WIDTH]
    names = list(shapes)
    groups = [names[i * len(names) // shards : (i + 1) * len(names) // shards] for i in range(shards)]
    where.mkdir(parents=True)
    weight_map = {}
    random = np.random.default_rng(0)
    finite = random.integers(0x3C00, 0x4000, VOCAB * WIDTH, np.uint16)  # the bits of bf16 values from 0.008 to 2
    matrices = {"model.embed_tokens.weight": finite}
    matrices["lm_head.weight"] = finite if tie == "twin" else finite[::-1]
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
        "tie_word_embeddings": tie != "untied", "torch_dtype": "bfloat16",
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


BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "BF16": 16, "F16": 16, "I8": 8, "U8": 8, "F8_E4M3": 8}


class Tensor(NamedTuple):
    file: str
    shape: tuple[int, ...]
    dtype: str
    begin: int
    end: int


def read_regular(path: str, count: int) -> tuple[int, bytes]:
    """Size and first bytes of a regular file that is not a link."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        status = os.fstat(handle)
        assert stat.S_ISREG(status.st_mode)
        return status.st_size, os.read(handle, count)
    finally:
        os.close(handle)


def checked_json(path: str) -> dict[str, Any]:
    """A JSON object without duplicate keys: of two, json keeps one, and there are fewer strings than in the text."""
    size, raw = read_regular(path, 1 << 16)
    assert size == len(raw)
    document = json.loads(raw)
    assert b"\\" not in raw
    assert raw.count(b'"') == 2 * strings(document)
    return document


def strings(document: Any) -> int:
    if not isinstance(document, dict | list):
        return isinstance(document, str)
    keys, values = (len(document), document.values()) if isinstance(document, dict) else (0, document)
    if set(map(type, values)) == {str}:
        return keys + len(values)
    return keys + sum(map(strings, values))


def checked_headers(where: Path) -> dict[str, Tensor]:
    """What every reader of untrusted files must do beyond bare headers, and nothing else: the limit of `open`.

    The directory is listed, every file of the index is one of it and a regular file, no header is longer than its file,
    no key of a JSON object is there twice, type, shape and range of every tensor agree, and the ranges tile the file.
    The result is a table with a record for each tensor, made in the fastest way that Python has.
    """
    with os.scandir(where) as entries:
        present = {entry.name for entry in entries if not entry.is_dir()}
    index = checked_json(f"{where}/model.safetensors.index.json")["weight_map"]
    checked_json(f"{where}/config.json")
    tensors: dict[str, Tensor] = {}
    new = tuple.__new__
    for file in sorted(set(index.values())):
        assert file in present
        size, first = read_regular(f"{where}/{file}", 1 << 13)
        begin = 8 + int.from_bytes(first[:8], "little")
        assert begin <= min(size, 100_000_000)
        raw = first[8:begin] if begin <= len(first) else read_regular(f"{where}/{file}", begin)[1][8:]
        header, at = json.loads(raw), 0
        assert b"\\" not in raw
        assert raw.count(b'"') == 10 * len(header)  # a name, three keys and a type each
        for name, entry in header.items():
            shape, dtype, (start, end) = entry["shape"], entry["dtype"], entry["data_offsets"]
            assert len(shape) <= 32
            bits = BITS[dtype]
            for n in shape:
                assert type(n) is int
                assert 0 <= n < 1 << 48
                bits *= n
            assert type(start) is type(end) is int
            assert start == at <= end
            assert bits == 8 * (end - start)
            assert name not in tensors
            tensors[name] = new(Tensor, (file, tuple(shape), dtype, begin + start, begin + end))
            at = end
        assert begin + at == size
    assert not index.keys() - tensors.keys()
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
# `inspect` starts no BLAS threads either: without this the limit would do more work than the command.
NUMPY = "import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'; import numpy"
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


LEAST = "parsing JSON, checking type, shape and range of every tensor, and a record for each, in Python"


def open_rows(bench: Bench, name: str, where: Path, goal: str) -> Iterator[Row]:
    found = bench.measure(
        {
            "bare": lambda: bare_headers(where),
            "open": lambda: tiebeam.open_checkpoint(where),
            "checked": lambda: checked_headers(where),
            "safe_open": lambda: safe_open_all(where),
        },
        "bare", bench.budget * 0.08, judged=("open",),
    )  # fmt: skip
    yield timed(f"open, {name}", found, "open", "bare json headers", goal, job="open 3 shards; 200 shards",
                limit="checked",
                limited_by=LEAST)  # fmt: skip
    yield timed(f"open, {name}, against safe_open", found, "open", "safe_open over all shards", "<= 1.0",
                over="safe_open", limit="checked",
                limited_by=LEAST)  # fmt: skip


def several_inspects(where: Path) -> Seconds:
    """The mean of twenty: one call takes milliseconds, and the first after a load finds cold caches."""
    start = time.perf_counter()
    for _ in range(20):
        tiebeam.inspect(where)
    return Seconds((time.perf_counter() - start) / 20)


def process_rows(bench: Bench, tied: Path, untied: Path) -> Iterator[Row]:
    """The command, for a tied model (its headers are all that is read) and for a pair that is compared."""
    python, inspect = [sys.executable, "-c"], [sys.executable, "-m", "tiebeam", "inspect"]
    found = bench.measure(
        {
            "pass": lambda: process_seconds(*python, "pass"),
            "tied": lambda: process_seconds(*inspect, str(tied)),
            "untied": lambda: process_seconds(*inspect, str(untied)),
            "numpy": lambda: process_seconds(*python, NUMPY),
            "records": lambda: process_seconds(*python, "import dataclasses, json, threading"),
        },
        "pass", bench.budget * 0.25, judged=("tied", "untied"),
    )  # fmt: skip
    job = "`tiebeam inspect` process over `python -c pass`"
    modules = [in_child(IMPORTED, str(where))["modules"] for where in (tied, untied)]
    yield timed("tiebeam inspect of a tied model, the process", found, "tied", "python -c pass", "<= 5",
                bound=">= 1.0", limit="records", job=job,
                limited_by=f"the imports, {modules[0]:.0f} modules; a process that only imports dataclasses, json "
                "and threading")  # fmt: skip
    # Of an untied pair the numbers are compared too, so its limit is the command without NumPy and NumPy's import.
    without, numpy = found.ratio("tied").value, found.ratio("numpy").value
    untied_row = timed(
        "tiebeam inspect of an untied pair, the process", found, "untied", "python -c pass", "<= 5", bound=">= 1.0",
        limited_by=f"the imports, {modules[1]:.0f} modules: inspect without NumPy takes {without:.1f}, importing NumPy "
        f"adds {numpy - 1:.1f}", job=job,
    )  # fmt: skip
    yield replace(untied_row, limit=without + numpy - 1)


def rows(bench: Bench) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        untied = write_checkpoint(Path(scratch) / "untied", 3, "untied")
        many = write_checkpoint(Path(scratch) / "many", 200, "untied")
        twin = write_checkpoint(Path(scratch) / "twin", 3, "twin")
        shared = write_checkpoint(Path(scratch) / "shared", 3, "shared")
        assert tiebeam.inspect(untied).tie == "untied"
        assert tiebeam.inspect(shared).tie == "shared"
        assert checked_headers(untied).keys() == tiebeam.open_checkpoint(untied).tensors.keys()
        yield from open_rows(bench, "1.1B, 3 shards", untied, "<= 1.2")
        yield from open_rows(bench, "1.1B, 200 shards", many, "<= 0.9")
        yield from process_rows(bench, shared, untied)
        found = bench.measure(
            {"memmap": lambda: memmap_compare(twin), "ours": lambda: tiebeam.inspect(twin)},
            "memmap",
            bench.budget * 0.1,
        )
        yield timed("comparing a twin, speed", found, "ours", "numpy.memmap compare", ">= 1.0", speed=True,
                    limited_by="reading both matrices from the page cache")  # fmt: skip
        found = bench.measure(
            {"load": lambda: Seconds(in_child(LOAD, str(untied))["seconds"]), "ours": lambda: several_inspects(untied)},
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
