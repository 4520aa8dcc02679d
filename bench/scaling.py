"""How cost grows: exponents of time over size, with intervals, beside what theory says.

python bench/scaling.py [--quick] [--json]

Every exponent is a least-squares fit on logarithms over sizes that are a factor of 2 or 4 apart: the median of the fits
to each of the interleaved rounds. Fixed costs make exponents smaller than theory. One that is larger by more than 0.1
is a bug.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from distributed_speed import Group
from harness import Bench, Row, Seconds, Side, growth, main
from loss import inputs, step
from merge import adapter

import tiebeam
from lens import write_pair
from surgery import add_tokenizer, checkpoint
from tiebeam.corpus import build_corpus
from tiebeam.doctor import diagnose
from tiebeam.nn import tied_cross_entropy
from tiebeam.surgery import tie
from tiebeam.surgery.merge import merge
from tiebeam.surgery.trim import trim

MARGIN = 0.1
JOB = "scaling"


def headers_only(where: Path, tensors: int, shards: int) -> Path:
    """A llama with `tensors` small tensors in `shards` files; numbers are zero."""
    names = ["model.embed_tokens.weight", "lm_head.weight", *(f"model.layers.{i}.w" for i in range(tensors - 2))]
    where.mkdir(parents=True)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        header, at = {}, 0
        for name in names[i * tensors // shards : (i + 1) * tensors // shards]:
            header[name] = {"dtype": "F32", "shape": [4, 4], "data_offsets": [at, at + 64]}
            weight_map[name] = file
            at += 64
        raw = json.dumps(header).encode()
        (where / file).write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(at))
    (where / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {"model_type": "llama", "vocab_size": 4, "hidden_size": 4, "tie_word_embeddings": True}
    (where / "config.json").write_text(json.dumps(config))
    return where


def exponent(
    bench: Bench, name: str, theory: float, why: str, sides: dict[float, Side], share: float,
    after: Side | None = None, most: int = 15,
) -> Row:  # fmt: skip
    """`sides` by size, the smallest first; `share` of the bench's time."""
    named = {str(size): side for size, side in sides.items()}
    first = next(iter(named))
    found = bench.measure(named, first, bench.budget * share, judged=(list(named)[-1],), control=False, most=most,
                          after=after, fewest=4)  # fmt: skip
    fit = growth([(size, found.seconds[str(size)]) for size in sides])
    low, high = fit.exponent.low, fit.exponent.high
    sizes = f"{min(sides):,.0f} to {max(sides):,.0f}"
    return Row(f"{name}: exponent", fit.exponent.value, f"theory {theory:g} ({why}), {sizes}",
               f"<= {theory + MARGIN:.2f}", low, high, rounds=found.count, limited_by=why, job=JOB)  # fmt: skip


def file_rows(bench: Bench, place: Path) -> Iterator[Row]:
    tensors = {n: headers_only(place / f"tensors{n}", n, 1) for n in (250, 1000, 4000, 16000)}
    yield exponent(bench, "inspect over tensors", 1, "every header entry is parsed once",
                   {n: partial(tiebeam.inspect, where) for n, where in tensors.items()}, 0.06)  # fmt: skip
    shards = {n: headers_only(place / f"shards{n}", 2000, n) for n in (10, 40, 160, 640)}
    yield exponent(bench, "inspect over shards", 1, "every shard is opened once",
                   {n: partial(tiebeam.inspect, where) for n, where in shards.items()}, 0.06)  # fmt: skip
    yield exponent(bench, "doctor over files", 1, "every file is opened once",
                   {n: partial(diagnose, where) for n, where in shards.items()}, 0.06)  # fmt: skip


def loss_rows(bench: Bench) -> Iterator[Row]:
    base = {"V": 8192, "D": 256, "tokens": 512}
    for name, sizes in (
        ("V", (4096, 8192, 16384, 32768)),
        ("D", (128, 256, 512, 1024)),
        ("tokens", (256, 512, 1024, 2048)),
    ):
        sides: dict[float, Side] = {}
        for size in sizes:
            V, D, N = ({**base, name: size}[key] for key in ("V", "D", "tokens"))
            sides[size] = partial(step, tied_cross_entropy, *inputs(V, D, N))
        yield exponent(bench, f"loss over {name}", 1, "three products of V D N", sides, 0.05)


def surgery_rows(bench: Bench, place: Path) -> Iterator[Row]:
    """Nothing is flushed, so that the page cache and not the disk is measured."""
    layers, target = (1, 2, 4, 8), place / "target"
    shape = (2000, 2048, 5632, 256)
    text = place / "text.txt"
    text.write_text(" ".join(f"w{i % 900}" for i in range(5000)))
    models: dict[float, tuple[Path, Path]] = {}
    for n in layers:
        where = checkpoint(place / f"twin{n}", True, n, shape)
        add_tokenizer(where, shape[0])
        config = json.loads((where / "config.json").read_text())
        (where / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
        size = sum(path.stat().st_size for path in where.glob("*.safetensors")) / 1e6
        models[size] = where, adapter(place / f"adapter{n}", where, n)
    fast = {"proof": False, "durable": False}
    verbs: dict[str, Callable[[Path, Path], Side]] = {
        "tie": lambda model, _: partial(tie, model, target, **fast),
        "trim": lambda model, _: partial(trim, model, target, text=[text], keep=1000, **fast),
        "merge": lambda model, trained: partial(merge, model, trained, target, **fast),
    }

    def clean() -> None:
        shutil.rmtree(target, ignore_errors=True)

    for verb, make in verbs.items():
        sides = {size: make(*paths) for size, paths in models.items()}
        yield exponent(bench, f"{verb} over megabytes", 1, "every byte is copied once", sides, 0.06, clean)


def lens_rows(bench: Bench, place: Path) -> Iterator[Row]:
    def look(where: Path) -> None:
        str(tiebeam.Lens.open(where))

    rows: Sequence[tuple[str, float, str, list[tuple[float, int, int]]]] = [
        ("V", 1, "the sums take V D^2", [(v, v, 128) for v in (8192, 16384, 32768, 65536)]),
        ("D", 3, "V D^2, and D^3 to solve", [(d, 4096, d) for d in (64, 128, 256, 512)]),
    ]
    for name, theory, why, sizes in rows:
        sides = {size: partial(look, write_pair(place / f"lens{name}{size}", V, D)) for size, V, D in sizes}
        yield exponent(bench, f"lens over {name}", theory, why, sides, 0.06)


def rank_row(bench: Bench, place: Path) -> Row:
    """Core-seconds per step for a fixed batch on 1, 2 and 4 ranks of one thread: only the exchange may add to them."""
    corpus = build_corpus([], place / "corpus", max_bytes=500_000)
    groups = {n: Group(corpus.path, place / f"ranks{n}", "ddp", n, 1, 8192) for n in (1, 2, 4)}
    cores = os.cpu_count() or 1
    try:
        sides: dict[float, Side] = {
            n: lambda group=group, n=n: Seconds(group.advance(1) * min(n, cores)) for n, group in groups.items()
        }
        return exponent(bench, "train over ranks, core-seconds of a step", 0, "the same products, and their exchange",
                        sides, 0.2, most=60)  # fmt: skip
    finally:
        for group in groups.values():
            group.__exit__(None, None, None)


def rows(bench: Bench) -> Iterator[Row]:
    torch.set_num_threads(bench.threads)
    place = Path(tempfile.mkdtemp(prefix="tiebeam-bench-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    try:
        yield from file_rows(bench, place)
        yield from loss_rows(bench)
        yield from surgery_rows(bench, place)
        yield from lens_rows(bench, place)
        yield rank_row(bench, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main(rows)
