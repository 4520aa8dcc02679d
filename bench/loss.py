"""The tied loss, forward and backward: time over its three matrix products, and memory beyond the gradients.

python bench/loss.py [--threads 1] [--shape V,D,N] [--quick] [--json]

The products write into buffers that exist already; "buffers reused" is our loss with its buffers kept from step to
step. What limits both is measured too: the same products with a softmax in place, in as many chunks of tokens as ours,
because chunks bound the memory and every further chunk reads and writes dW once more. bench/loss_peers.py compares with
torch.compile and cut-cross-entropy.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import STATUS, Bench, Rounds, Row, Side, in_child, main, row, timed

from tiebeam import nn
from tiebeam.nn import chunked_loss, tied_cross_entropy

Shape = tuple[int, int, int]  # vocabulary, width, tokens
SHAPES: list[Shape] = [(1024, 512, 16384), (50257, 768, 1024)]
MEMORY_OF: list[Shape] = [(50257, 768, 4096), (128256, 2048, 1024)]
SMALLER_OF: Shape = (128256, 2048, 512)  # is measured with smaller chunks too
SMALLER = 128  # tokens in such a chunk: a quarter of the memory of the peers
LIMIT = "the softmax between the products, and dW read and written for every chunk"
JOB = "tied loss over its three products"


def inputs(vocab: int, dim: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(tokens, dim, generator=generator)
    W = torch.randn(vocab, dim, generator=generator).mul_(0.02)
    return h.requires_grad_(), W.requires_grad_(), torch.randint(vocab, (tokens,), generator=generator)


def plain(h: torch.Tensor, W: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(h, W), targets)


def label(shape: Shape, threads: int) -> str:
    vocab, dim, tokens = shape
    return f"{vocab} x {dim} x {tokens}" + (", one thread" if threads == 1 else "")


def step(loss: Callable[..., torch.Tensor], h: torch.Tensor, W: torch.Tensor, targets: torch.Tensor) -> None:
    h.grad = W.grad = None
    loss(h, W, targets).backward()


def products(h: torch.Tensor, W: torch.Tensor) -> Side:
    """The lower bound: logits, dh and dW as matrix products into existing, touched buffers."""
    logits, dh, dW = torch.ones(len(h), len(W)), torch.ones_like(h), torch.ones_like(W)
    h, W, dh, dW = h.detach(), W.detach(), dh.detach(), dW.detach()

    def run() -> None:
        torch.mm(h, W.t(), out=logits)
        torch.mm(logits, W, out=dh)
        torch.mm(logits.t(), h, out=dW)

    return run


def chunked_products(h: torch.Tensor, W: torch.Tensor) -> Side:
    """The limit of a loss that holds one chunk of logits: the products and a softmax, chunk by chunk."""
    chunk = chunked_loss.default_chunk(len(h), len(W), W.shape[1])
    logits, dh, dW = torch.ones(chunk, len(W)), torch.ones_like(h), torch.ones_like(W)
    h, W, dh, dW = h.detach(), W.detach(), dh.detach(), dW.detach()

    def run() -> None:
        for start in range(0, len(h), chunk):
            part, out = h[start : start + chunk], dh[start : start + chunk]
            z = logits[: len(part)]
            torch.mm(part, W.t(), out=z)
            torch.softmax(z, 1, out=z)
            torch.mm(z, W, out=out)
            torch.addmm(dW, z.t(), part, beta=0.0 if start == 0 else 1.0, out=dW)

    return run


def reused(h: torch.Tensor, W: torch.Tensor, targets: torch.Tensor) -> Side:
    """Ours with its buffers kept from step to step."""
    return partial(step, partial(tied_cross_entropy, buffers=nn.LossBuffers()), h, W, targets)


def sides(shape: Shape, with_reused: bool) -> dict[str, Side]:
    h, W, targets = inputs(*shape)
    found: dict[str, Side] = {
        "products": products(h, W), "ours": partial(step, tied_cross_entropy, h, W, targets),
        "limit": chunked_products(h, W),
    }  # fmt: skip
    if with_reused:
        found["reused"] = reused(h, W, targets)
    if shape == SMALLER_OF:
        found["smaller"] = partial(step, partial(tied_cross_entropy, chunk=SMALLER), h, W, targets)
    return found


def time_rows(bench: Bench, shape: Shape, seconds: float, until: float) -> Iterator[Row]:
    vocab, dim, tokens = shape
    # A call of seconds gets no warm-up (its memory is touched already), and as few rounds as give an interval.
    longest = 6.0 * vocab * dim * tokens / bench.threads > 2e11
    setups = 1 if longest or bench.quick else 2
    found: Rounds | None = None
    for _ in range(setups):
        found = bench.measure(
            sides(shape, tokens < 1024 or vocab < 100_000), "products", seconds / setups, rounds=found,
            judged=("ours",), fewest=6, warmup=not longest, until=until, seldom=("smaller",),
        )  # fmt: skip
    assert found is not None
    for side, goal, what in (("ours", "<= 1.06", "time"), ("reused", "<= 1.03", "time, buffers reused")):
        if side in found.seconds:
            yield timed(f"{label(shape, bench.threads)}: {what}", found, side, "its three matrix products", goal,
                        bound=">= 1.0", limit="limit", limited_by=LIMIT, job=JOB)  # fmt: skip
    if "smaller" in found.seconds:
        yield timed(f"{label(shape, bench.threads)}: time, chunks of {SMALLER} tokens", found, "smaller",
                    "ours with its default chunk", over="ours",
                    limited_by="dW is read and written once for each chunk")  # fmt: skip


MEMORY = (
    STATUS
    + """
sys.path.append(sys.argv[1])
import loss, loss_peers
name, shape = sys.argv[2], [int(x) for x in sys.argv[3:]]
call = loss_peers.memory_side(name)
call(*loss.inputs(*(shape if name in loss_peers.COMPILED else (64, 16, 32))))
h, W, targets = loss.inputs(*shape)
before = reset_peak()
call(h, W, targets)
print(json.dumps({"beyond": status("VmHWM") - before - 4 * (h.numel() + W.numel())}))
"""
)


def bytes_beyond_gradients(name: str, shape: Shape) -> float:
    """Peak memory of one step beyond dh and dW, in a subprocess."""
    return in_child(MEMORY, str(Path(__file__).parent), name, *map(str, shape))["beyond"]


def memory_row(shape: Shape) -> Row:
    vocab, dim, tokens = shape
    allowed = 4 * chunked_loss.default_chunk(tokens, vocab, dim) * vocab + 100e6
    return row(
        f"{label(shape, 2)}: memory beyond the gradients", bytes_beyond_gradients("ours", shape) / allowed,
        "a chunk of logits + 100 MB", "<= 1.0", limited_by="one chunk of logits must exist",
    )  # fmt: skip


def given_shapes(quick: bool = False) -> list[Shape]:
    """Of --shape V,D,N, without which both smaller shapes are measured. A quick run leaves out larger ones."""
    if "--shape" not in sys.argv:
        return SHAPES
    given = "".join(sys.argv[sys.argv.index("--shape") + 1 :][:1])
    if not re.fullmatch(r"[1-9]\d*,[1-9]\d*,[1-9]\d*", given):
        raise SystemExit(f"--shape {given!r} is not V,D,N; an example is --shape 50257,768,1024")
    vocab, dim, tokens = (int(size) for size in given.split(","))
    return [] if quick else [(vocab, dim, tokens)]


def memory_used_before() -> int:
    """GB that `harness.main` uses once before the given shapes are measured."""
    return 8 if max(vocab for vocab, _, _ in given_shapes()) > 100_000 else 2


def rows(bench: Bench) -> Iterator[Row]:
    chosen = given_shapes(bench.quick)
    each = bench.budget / max(1, len(chosen))
    for i, shape in enumerate(chosen, 1):  # a shape whose rounds are long leaves the others their time
        yield from time_rows(bench, shape, each * 0.7, bench.end - each * (len(chosen) - i))
        if shape in MEMORY_OF and bench.threads > 1:
            yield memory_row(shape)


if __name__ == "__main__":
    main(rows, memory=memory_used_before())
