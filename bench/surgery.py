"""Time of tie, untie and trim over `cp`, and their memory.

python bench/surgery.py [--quick] [--json]

2.0 GB of a Llama of TinyLlama's shape in three shards, in bf16, written whole, compared and flushed, against `cp -r`
and `sync` of the same files; the proof, which runs the model, is not part of it. Every side writes to a new directory,
and removing it is not timed. The page cache grows into memory that was used just before: on a virtual machine the host
may take free memory back, and then the same copy takes 0.5 s one time and 5 s the next. "Small files" is a model of
20 MB, where the fixed costs are.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from harness import Bench, Row, Side, in_child, main, row, several, timed, touch_memory

from tiebeam.checkpoint.write.copy_bytes import Made, write_files
from tiebeam.checkpoint.write.safetensors import Entry, layout
from tiebeam.surgery import tie, untie
from tiebeam.surgery.trim import trim

UNTIE = """
import sys
from tiebeam.surgery import untie
untie(sys.argv[1], sys.argv[2], proof=False)
"""
TRANSFORMERS = """
import sys
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], tie_word_embeddings=True)
model.tie_weights()
model.save_pretrained(sys.argv[2], max_shard_size="900MB")
"""
# Random rows: memory does not depend on their number, and 128k of them would only take longer.
JOINT = """
import sys
import numpy as np
from tiebeam.surgery.joint.decomposition import moments_of, spectrum_of, square_roots
D, V = int(sys.argv[1]), int(sys.argv[2])
random = np.random.default_rng(0)
rows = lambda start, stop: tuple(random.standard_normal((stop - start, D), dtype=np.float32) for _ in range(2))
moments = moments_of(rows, np.full(V, 1 / V), D)
spectrum_of(moments, square_roots(np.eye(D)), 1.0).factors(D)
"""


COPYING = "copying and flushing the same bytes, a thread per file"
USED = 3  # GB, more than a side writes
TINYLLAMA, SMALL = (32000, 2048, 5632, 256), (8000, 512, 1408, 64)  # V, D, F, width of the keys


def checkpoint(where: Path, twin: bool, layers: int, shape: tuple[int, int, int, int] = TINYLLAMA) -> Path:
    """A Llama of TinyLlama's shape in bf16, in three shards."""
    V, D, F, K = shape
    shapes = {"model.embed_tokens.weight": (V, D)}
    for i in range(layers):
        layer = f"model.layers.{i}."
        shapes |= {
            layer + "self_attn.q_proj.weight": (D, D), layer + "self_attn.k_proj.weight": (K, D),
            layer + "self_attn.v_proj.weight": (K, D), layer + "self_attn.o_proj.weight": (D, D),
            layer + "mlp.gate_proj.weight": (F, D), layer + "mlp.up_proj.weight": (F, D),
            layer + "mlp.down_proj.weight": (D, F), layer + "input_layernorm.weight": (D,),
            layer + "post_attention_layernorm.weight": (D,),
        }  # fmt: skip
    shapes["model.norm.weight"] = (D,)
    if twin:
        shapes["lm_head.weight"] = (V, D)
    noise = os.urandom(1 << 20)
    small = bytes(b & 0xBF for b in noise)  # bf16 values below 2: no infinities, which transformers would not handle

    def entry(name: str) -> Entry:
        shape = shapes[name]
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        return Entry(
            name,
            "BF16",
            shape,
            Made(size, lambda: (small[: min(1 << 20, size - at)] for at in range(0, size, 1 << 20))),
        )

    where.mkdir(parents=True)
    total = sum(entry(name).nbytes for name in shapes)
    piles: list[list[Entry]] = [[], [], []]
    done = 0
    for name in shapes:
        piles[min(2, 3 * done // total)].append(entry(name))
        done += entry(name).nbytes
    weight_map = {}
    for i, pile in enumerate(piles, 1):
        file = f"model-{i:05d}-of-00003.safetensors"
        write_files([(where / file, layout(pile, {"format": "pt"}))])
        weight_map |= {e.name: file for e in pile}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (where / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": V, "hidden_size": D,
        "intermediate_size": F, "num_hidden_layers": layers, "num_attention_heads": D // 64,
        "num_key_value_heads": K // 64,
        "tie_word_embeddings": not twin, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (where / "config.json").write_text(json.dumps(config))
    return where


def cp(source: Path, target: Path) -> None:
    subprocess.run(f"cp -r '{source}' '{target}' && sync '{target}'/*", shell=True, check=True)


def bare_copy(source: Path, target: Path, dropped: int = 0, beside: Side = lambda: None) -> None:
    """The limit: copy_file_range or read and write, one thread per file, and fsync.

    `dropped` bytes of the first shard are not copied; `beside` is called while the threads copy.
    """
    target.mkdir()
    paths = sorted(source.iterdir())
    first = next(path for path in paths if path.suffix == ".safetensors")
    threads = [threading.Thread(target=copy, args=(path, target, dropped * (path == first))) for path in paths]
    for thread in threads:
        thread.start()
    beside()
    for thread in threads:
        thread.join()


def copy(path: Path, target: Path, dropped: int = 0) -> None:
    """One file without its last `dropped` bytes, flushed."""
    with open(path, "rb") as a, open(target / path.name, "wb") as b:
        left, supported = path.stat().st_size - dropped, hasattr(os, "copy_file_range")
        while supported and left > 0 and (done := os.copy_file_range(a.fileno(), b.fileno(), min(left, 1 << 26))):
            left -= done
        while left > 0 and (block := a.read(min(left, 1 << 22))):
            left -= b.write(block)
        b.flush()
        os.fsync(b.fileno())


def bare_link(source: Path, target: Path, nbytes: int) -> None:
    """The limit of --link: hard links, and a new file with as many bytes as the head, flushed."""
    target.mkdir()
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            os.link(path, target / path.name)
        else:
            copy(path, target)
    shard = next(source.glob("*.safetensors"))
    (target / "head").mkdir()
    copy(shard, target / "head", shard.stat().st_size - nbytes)


def removing(target: Path, used: int = 0) -> Side:
    """Remove what a side wrote, then use that many GB of memory."""

    def after() -> None:
        shutil.rmtree(target, ignore_errors=True)
        os.sync()
        if used:
            touch_memory(used)

    return after


def large_rows(bench: Bench, place: Path) -> Iterator[Row]:
    """tie, untie and trim of 2.0 GB, all over `cp -r` and `sync` of the same untied model."""
    twin, shared = pair(place, 2 if bench.quick else 22, TINYLLAMA)
    target, text, (V, D) = place / "target", place / "text.txt", TINYLLAMA[:2]
    add_tokenizer(twin)
    text.write_text(" ".join(f"w{i % 9000}" for i in range(60_000)))
    table = V * D * 2  # bytes
    sides: dict[str, Side] = {
        "cp": partial(cp, twin, target),
        "tie": partial(tie, twin, target, proof=False),
        "untie": partial(untie, shared, target, proof=False),
        "trim": partial(trim, twin, target, text=[text], keep=V // 2, proof=False),
        "untie --link": partial(untie, shared, target, proof=False, link=True),
        "limit": partial(bare_copy, twin, target),
        "trim limit": partial(bare_copy, twin, target, table, partial(count, twin, text)),
        "link limit": partial(bare_link, shared, target, table),
    }
    after = removing(target, USED)
    sides["cp"]()
    after()
    found = bench.measure(sides, "cp", bench.budget * 0.6, after=after, judged=("tie", "untie", "trim"), warmup=False,
                          seldom=("untie --link", "limit", "trim limit", "link limit"),
                          until=bench.start + 0.8 * bench.budget)  # fmt: skip
    size, cp_and_sync = "2.0 GB in 3 shards", "cp -r and sync"
    for verb in ("tie", "untie"):
        yield timed(f"{verb}, {size}, verified and flushed", found, verb, cp_and_sync, "<= 1.0", limit="limit",
                    limited_by=COPYING, job="tie, untie, 2.0 GB in 3 shards")  # fmt: skip
    yield timed(f"untie --link, {size}", found, "untie --link", cp_and_sync, "<= 0.25", limit="link limit",
                limited_by="writing and flushing the bytes of the new head", job="untie with --link")  # fmt: skip
    yield timed(f"trim, {size}", found, "trim", cp_and_sync, "<= 1.2", limit="trim limit",
                limited_by="copying and flushing the bytes that remain, and counting the tokens of the text",
                job="trim of 2.2 GB over cp")  # fmt: skip


def small_rows(bench: Bench, place: Path) -> Iterator[Row]:
    twin, shared = pair(place, 2, SMALL)
    target = place / "target"
    found = bench.measure(
        {
            "cp": partial(cp, twin, target),
            "tie": partial(tie, twin, target, proof=False),
            "untie": partial(untie, shared, target, proof=False),
            "limit": partial(bare_copy, twin, target),
        },
        "cp", bench.budget * 0.05, after=removing(target), judged=("tie", "untie"),
    )  # fmt: skip
    for verb in ("tie", "untie"):
        yield timed(f"{verb}, small files, verified and flushed", found, verb, "cp -r and sync", "<= 1.3",
                    limit="limit", limited_by=COPYING, job="tie, untie, 2.0 GB in 3 shards")  # fmt: skip


def pair(place: Path, layers: int, shape: tuple[int, int, int, int]) -> tuple[Path, Path]:
    """An untied model whose two matrices are equal, and the tied one, on the disk."""
    twin, shared = (checkpoint(place / name, name == "twin", layers, shape) for name in ("twin", "shared"))
    os.sync()
    return twin, shared


def count(source: Path, text: Path) -> int:
    """The tokens of a text, as the `tokenizers` package counts them."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    return len(tokenizer.encode_batch_fast([text.read_text()], add_special_tokens=False)[0].ids)


def add_tokenizer(source: Path, vocab: int = 32_000) -> None:
    """A WordPiece tokenizer with the words w0, w1 and so on, so that `trim` has tokens to count."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = ["[UNK]", *(mark + character for mark in ("", "##") for character in "w0123456789")]
    words = {piece: i for i, piece in enumerate([*pieces, *(f"w{i}" for i in range(vocab - len(pieces)))])}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.WhitespaceSplit(), decoders.WordPiece()
    tokenizer.save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def rows(bench: Bench) -> Iterator[Row]:
    place = Path(tempfile.mkdtemp(prefix="tiebeam-bench-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    try:
        yield from large_rows(bench, place)
        shared = place / "shared"
        base = in_child("import tiebeam.surgery, tiebeam.surgery.untie")["peak_rss"]
        peak = [in_child(UNTIE, str(shared), str(place / f"memory{i}"))["peak_rss"] for i in range(2)]
        yield several(
            "untie, peak memory", [x / 1e6 for x in peak], "MB", "<= 150", unit="MB", limited_by="the imports"
        )
        yield several("untie, memory beyond the imports", [(x - base) / 1e6 for x in peak], "MB", "<= 20", unit="MB",
                      limited_by="the buffers that are copied through")  # fmt: skip
        shutil.rmtree(place)
        small = place / "small"
        yield from small_rows(bench, small)
        load = bench.measure(
            {
                "transformers": lambda: in_child(TRANSFORMERS, str(small / "twin"), str(small / "out")),
                "tie": partial(tie, small / "twin", small / "out", proof=False),
            },
            "transformers", 1, fewest=3, most=3, control=False, after=removing(small / "out"), warmup=False,
        )  # fmt: skip
        yield timed("tie, speed against load-tie-save, small files", load, "tie", "transformers, its process", ">= 5",
                    speed=True, limited_by="copying and flushing")  # fmt: skip
        wide = 512 if bench.quick else 4096
        joint = in_child(JOINT, str(wide), str(2 * wide))["peak_rss"]
        yield row(f"tie --joint at width {wide:,}, peak memory", joint / 1e9, "GB", "<= 2" if wide > 512 else "",
                  unit="GB", limited_by="the moments, four D x D matrices in float64")  # fmt: skip
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main(rows)
