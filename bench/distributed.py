"""The vocabulary on several ranks: memory per rank, bytes sent per rank, and tokens per second, relative to one rank.

python bench/distributed.py [--quick] [--json]

"table and Adam" is the size of the tensors that a rank keeps between steps: weights and both moments. "peak" is the
growth of its resident memory over building and two steps, including gradients, gathered tables, logits and buffers.
Bytes sent are what a rank wrote to its sockets in one step (/proc/self/io), against the formula in tiebeam.budget.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # not in the spawned ranks, which inherit the changed path
    sys.path.append(sys.path.pop(0))  # bench/inspect.py would shadow the standard module

import json
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from _common import Row, main, row
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tiebeam.budget import communication_volume
from tiebeam.corpus import build_corpus
from tiebeam.nn import ShardedEmbedding, TiedEmbedding, exclude_from_ddp
from tiebeam.nn.collectives import local_part

CORES = 2
TABLE, QUICK_TABLE = (50257, 768, 512), (50257, 512, 256)  # vocabulary, width, tokens of all ranks
SIDES = {"ddp": "DDP", "fsdp": "FSDP2", "rows": "sharded vocabulary"}


class EmbeddingAndHead(nn.Module):
    """Embedding and head with almost nothing in between, so that the vocabulary dominates."""

    def __init__(self, vocab: int, dim: int, tied: bool, side: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gain = nn.Parameter(torch.ones(dim))
        if side != "rows":
            self.table = TiedEmbedding(vocab, dim)
        else:  # without ever holding the full table
            self.table = ShardedEmbedding.from_full(TiedEmbedding(vocab, dim, device="meta")).to_empty(device="cpu")
            self.table.reset_parameters()
        if not tied:
            self.table.untie()

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.table.loss(self.gain * self.table.embed(ids), targets)


def wrapped(model: nn.Module, side: str) -> nn.Module:
    if side == "fsdp":
        from torch.distributed.fsdp import fully_shard

        return fully_shard(model)
    if side == "one":
        return model
    exclude_from_ddp(model)
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def memory_and_bytes(side: str, vocab: int, dim: int, tokens: int, tied: bool) -> dict[str, float]:
    """Run on every rank."""

    def build_and_step(vocab: int, dim: int, tokens: int) -> dict[str, float]:
        model = EmbeddingAndHead(vocab, dim, tied, side)
        call = wrapped(model, side)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        ids, targets = (torch.arange(tokens) * (vocab // tokens)).expand(2, -1)  # as many rows from every rank
        Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
        sent = 0
        for _ in range(3):
            if side != "one":
                dist.barrier()
            before = written()
            call(ids, targets).backward()
            sent = written() - before
            optimizer.step()
            optimizer.zero_grad()
        tables = [parameter for name, parameter in model.named_parameters() if "table" in name]
        moments = [optimizer.state[p][key] for p in tables for key in ("exp_avg", "exp_avg_sq")]
        return {"held": float(sum(local_part(t).nbytes for t in [*tables, *moments])), "sent": float(sent)}

    build_and_step(256, 16, 32)  # load libraries, buffers and threads before measuring
    before = status("VmRSS")
    found = build_and_step(vocab, dim, tokens)
    return {**found, "peak": float(status("VmHWM") - before)}


def status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def written() -> int:
    return next(int(line.split()[1]) for line in Path("/proc/self/io").read_text().splitlines() if "wchar" in line)


def on_ranks(ranks: int, job: Callable[..., dict[str, float]], side: str, *arguments: object) -> dict[str, float]:
    """Run a job in fresh subprocesses; the largest value over ranks of every figure."""
    with tempfile.TemporaryDirectory() as where:
        torch.multiprocessing.start_processes(_rank, (ranks, where, job, side, arguments), ranks, start_method="spawn")
        each = [json.loads(path.read_text()) for path in Path(where).glob("*.json")]
    return {key: max(found[key] for found in each) for key in each[0]}


def least(ranks: int, side: str, *shape: int) -> dict[str, float]:
    """The smaller figures of two launches, because resident memory is noisy."""
    first, second = (on_ranks(ranks, memory_and_bytes, side, *shape) for _ in range(2))
    return {key: min(first[key], second[key]) for key in first}


def _rank(
    rank: int, ranks: int, where: str, job: Callable[..., dict[str, float]], side: str, arguments: tuple[object, ...]
) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(max(1, CORES // ranks))
    if side != "one":
        dist.init_process_group("gloo", init_method=f"file://{where}/store", rank=rank, world_size=ranks)
    found = job(side, *arguments)
    Path(where, f"{rank}.json").write_text(json.dumps(found))
    if side != "one":
        dist.destroy_process_group()


def memory_and_byte_rows(quick: bool) -> Iterator[Row]:
    vocab, dim, tokens = QUICK_TABLE if quick else TABLE
    one = {tied: least(1, "one", vocab, dim, tokens, tied) for tied in (True, False)}
    for ranks in (2,) if quick else (2, 4):
        share = f"<= {1.05 / ranks:.4g}"
        for tied in (True, False):
            word = "tied" if tied else "untied"
            label = f"{vocab} x {dim} {word}, {ranks} ranks"
            for side, name in SIDES.items():
                found = least(ranks, side, vocab, dim, tokens // ranks, tied)
                held, peak = ((found[key] / one[tied][key]) for key in ("held", "peak"))
                yield row(f"{label}, {name}: table and Adam", held, "one rank", "<= 1.0" if side == "ddp" else share)
                yield row(f"{label}, {name}: peak", peak, "one rank", share if side == "rows" else "<= 1.25")
                formula = getattr(
                    getattr(communication_volume(vocab, dim, ranks, tokens // ranks), _FORMULA[side]), word
                )
                against = f"the formula's {formula / 1e6:.1f} MB"
                yield row(f"{label}, {name}: bytes sent", found["sent"] / formula, against, _BYTES[side])


# DDP copies the gradient into its buckets and FSDP gathers the table for the step, so their peak is not 1/N.
# Gloo implements reduce-scatter as an all-reduce, which doubles the second half of what FSDP sends.
_FORMULA = {"ddp": "ddp", "fsdp": "fsdp", "rows": "shard_vocab"}
_BYTES = {"ddp": "<= 1.02", "fsdp": "<= 1.52", "rows": "<= 1.02"}


def speed_rows(quick: bool) -> Iterator[Row]:
    """`tiebeam train` with the same global batch on one rank and on several, and the speed that it reports."""
    alone = [sys.executable, "-m", "tiebeam", "train"]
    together = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(CORES), *alone[1:]]
    ways = {
        "one": [*alone, "--threads", str(CORES)],
        "ddp": [*together, "--threads", "1"],
        "fsdp": [*together, "--threads", "1", "--shard"],
        "rows": [*together, "--threads", "1", "--shard-vocab"],
    }
    best = dict.fromkeys(ways, 0.0)
    with tempfile.TemporaryDirectory() as where:
        corpus = Path(where, "corpus")
        build_corpus([], corpus, max_bytes=500_000)
        size = ["--steps", "10" if quick else "20", "--batch-tokens", "4096"]
        for _ in range(2 if quick else 3):
            for side, command in ways.items():
                out = [str(corpus), "--out", f"{where}/run", "--force", "--json", "--quiet"]
                done = subprocess.run([*command, *size, *out], capture_output=True, text=True, check=True)
                best[side] = max(best[side], json.loads(done.stdout)["tokens_per_second"])
    against = f"one rank with {CORES} threads, {best['one']:,.0f}/s"
    for side, name in SIDES.items():
        label = f"{CORES} ranks on {CORES} cores, {name}: tokens per second"
        yield row(label, best[side] / best["one"], against, ">= 0.9")


def rows(quick: bool) -> Iterator[Row]:
    yield from memory_and_byte_rows(quick)
    yield from speed_rows(quick)


if __name__ == "__main__":
    main(rows)
