"""The vocabulary on several ranks: memory per rank and bytes sent per rank, relative to one rank.

python bench/distributed.py [--quick] [--json]

"table and Adam" is the size of the tensors that a rank keeps between steps: weights and both moments. "peak" is the
growth of its resident memory over building and two steps, including gradients, gathered tables, logits and buffers.
Bytes sent are what a rank wrote to its sockets in one step (/proc/self/io), against the formula in tiebeam.budget. Four
ranks share two cores here, which changes neither memory nor bytes.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from harness import Bench, Row, main, row, several
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tiebeam.budget import communication_volume
from tiebeam.nn import ShardedEmbedding, TiedEmbedding, exclude_from_ddp
from tiebeam.nn.collectives import local_part

CORES = 2
TABLE = (50257, 768, 512)  # vocabulary, width, tokens of all ranks
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


# DDP copies the gradient into its buckets and FSDP gathers the table for the step, so their peak is not 1/N.
# Gloo implements reduce-scatter as an all-reduce, which doubles the second half of what FSDP sends.
_FORMULA = {"ddp": "ddp", "fsdp": "fsdp", "rows": "shard_vocab"}
_BYTES = {"ddp": "<= 1.02", "fsdp": "<= 1.52", "rows": "<= 1.02"}


def rows(bench: Bench) -> Iterator[Row]:
    vocab, dim, tokens = TABLE
    launches = 1 if bench.quick else 2
    one = {tied: [on_ranks(1, memory_and_bytes, "one", vocab, dim, tokens, tied) for _ in range(launches)]
           for tied in (True, False)}  # fmt: skip
    for ranks, tied in [(2, True), (4, True)] if bench.quick else [(2, True), (2, False), (4, True)]:
        share, word = f"<= {1.05 / ranks:.4g}", "tied" if tied else "untied"
        alone = {key: min(found[key] for found in one[tied]) for key in ("held", "peak")}
        for side, name in SIDES.items():
            label = f"{vocab} x {dim} {word}, {ranks} ranks, {name}"
            # Resident memory is noisy, so the goal about the peak gets more than one launch.
            found = [on_ranks(ranks, memory_and_bytes, side, vocab, dim, tokens // ranks, tied)
                     for _ in range(launches if side == "rows" else 1)]  # fmt: skip
            volume = getattr(communication_volume(vocab, dim, ranks, tokens // ranks), _FORMULA[side])
            formula = getattr(volume, word)
            yield row(f"{label}: bytes sent", found[0]["sent"] / formula, f"the formula's {formula / 1e6:.1f} MB",
                      _BYTES[side], limited_by=_BYTES_LIMIT[side])  # fmt: skip
            yield row(f"{label}: table and Adam", found[0]["held"] / alone["held"], "one rank",
                      "<= 1.0" if side == "ddp" else share, limited_by="1/N of the rows")  # fmt: skip
            peaks = [each["peak"] / alone["peak"] for each in found]
            limit = f"{_PEAK_LIMIT[side]}; one rank's peak is {alone['peak'] / 1e6:,.0f} MB"
            yield several(f"{label}: peak", peaks, "one rank", share if side == "rows" else "<= 1.25", limited_by=limit)


_BYTES_LIMIT = {"ddp": "the formula", "fsdp": "gloo's reduce-scatter is an all-reduce", "rows": "the formula"}
_PEAK_LIMIT = {
    "ddp": "the gradient's copy in DDP's buckets",
    "fsdp": "the gathered table",
    "rows": "1/N, and a chunk of logits",
}


if __name__ == "__main__":
    main(rows)
