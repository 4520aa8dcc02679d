"""The tied loss against its peers: plain PyTorch, torch.compile, cut-cross-entropy, Liger; time and memory.

python bench/loss_peers.py [--shape V,D,N] [--memory] [--quick] [--json]

cut-cross-entropy's CPU path is torch.compile too. torch's own chunked linear_cross_entropy gets 512 tokens per chunk
(its default is a few tokens at a time on wide tables, which is several times slower).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from harness import Bench, Row, Side, main, peers, row, timed
from loss import (
    LIMIT,
    Shape,
    bytes_beyond_gradients,
    chunked_products,
    given_shapes,
    inputs,
    label,
    memory_used_before,
    plain,
    step,
)

from tiebeam.nn import tied_cross_entropy
from tiebeam.nn.chunked_loss import default_chunk

COMPILED = ("torch.compile", "cut-cross-entropy")
JOB = "tied loss against torch.compile and cut-cross-entropy"


def torch_chunked(h: torch.Tensor, W: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=min(512, len(h)), chunking_method=None)
    return F.linear_cross_entropy(h, W, targets, options=options)


def loss_named(name: str) -> Callable[..., torch.Tensor]:
    if name == "torch.compile":
        torch._dynamo.reset()
        return torch.compile(plain)
    if name == "cut-cross-entropy":
        peers.load("cut_cross_entropy")
        from cut_cross_entropy import linear_cross_entropy

        return lambda h, W, targets: linear_cross_entropy(h, W, targets, impl="torch_compile")
    if name == "liger":
        peers.load("liger_kernel")
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Liger

        return lambda h, W, targets: Liger.apply(h, W, targets)[0]
    return {"plain": plain, "torch chunked": torch_chunked, "ours": tied_cross_entropy}[name]


def memory_side(name: str) -> Callable[..., None]:
    """One step of a loss, or of the products in chunks: the limit of every loss that holds a chunk of logits."""
    if name == "limit":
        return lambda h, W, targets: chunked_products(h, W)()
    return partial(step, loss_named(name))


def available(bench: Bench, wanted: tuple[str, ...]) -> list[str]:
    names = list(wanted)
    for name in ("cut-cross-entropy", "liger"):
        if name not in wanted:
            continue
        try:
            loss = loss_named(name)
            step(loss, *inputs(32, 8, 16))
        except Exception as problem:  # a peer that is not there, has no CPU path, or needs a compiler
            names.remove(name)
            reason = str(problem).strip().splitlines() or [type(problem).__name__]
            bench.say(reason[0] if isinstance(problem, peers.Missing) else f"without {name}: {reason[0]}")
    return names


def is_large(shape: Shape) -> bool:
    vocab, _, _ = shape
    return vocab > 100_000


def time_rows(bench: Bench, names: list[str]) -> Iterator[Row]:
    compiled = [name for name in names if name in COMPILED]
    for shape in given_shapes(bench.quick):
        vocab, _, _ = shape
        large = is_large(shape)
        h, W, targets = inputs(*shape)
        # The first peer is the reference. Only the smallest shape has time for all, the others for those of the goal.
        chosen, share = (names, 0.2) if vocab < 10_000 else (compiled, 0.3 if large else 0.5)
        calls: dict[str, Side] = {name: partial(step, loss_named(name), h, W, targets) for name in chosen}
        calls["ours"] = partial(step, tied_cross_entropy, h, W, targets)
        calls["limit"] = chunked_products(h, W)
        found = bench.measure(calls, chosen[0], bench.budget * share, judged=("ours",), fewest=6)
        for name in chosen:
            goal = "<= 1.0" if name in compiled or name == "torch chunked" else ""
            yield timed(f"{label(shape, bench.threads)}: time against {name}", found, "ours", name, goal, over=name,
                        limited_by=f"the three products, {LIMIT}", limit="limit",
                        job=JOB if name in compiled else "")  # fmt: skip
        del calls, h, W, targets


def memory_rows(bench: Bench, names: list[str]) -> Iterator[Row]:
    compiled = [name for name in names if name in COMPILED]
    for shape in [(50257, 768, 4096)] if bench.quick else [(50257, 768, 4096), (128256, 2048, 512)]:
        memory = {name: bytes_beyond_gradients(name, shape) for name in ["ours", "limit", *compiled]}
        vocab, dim, tokens = shape
        reason = f"a chunk of {default_chunk(tokens, vocab, dim)} tokens; a smaller one takes longer (bench/loss.py)"
        for name in compiled:
            yield row(f"{label(shape, 2)}: memory beyond the gradients against {name}", memory["ours"] / memory[name],
                      name, "<= 0.25", limited_by=reason, limit=memory["limit"] / memory[name], job=JOB)  # fmt: skip


def rows(bench: Bench) -> Iterator[Row]:
    if "--memory" in sys.argv:
        yield from memory_rows(bench, available(bench, COMPILED))
    elif all(is_large(shape) for shape in given_shapes()):
        yield from time_rows(bench, available(bench, COMPILED))
    else:
        yield from time_rows(bench, available(bench, (*COMPILED, "torch chunked", "plain", "liger")))


if __name__ == "__main__":
    main(rows, memory=0 if "--memory" in sys.argv else memory_used_before())
