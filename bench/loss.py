"""The tied loss, forward and backward: time relative to its three matrix products, and memory beyond the gradients.

python bench/loss.py [--quick] [--json]

The peers: F.linear + F.cross_entropy, the same under torch.compile, cut-cross-entropy's CPU path (also torch.compile;
measured if it is installed), and torch's chunked linear_cross_entropy with 512 tokens per chunk (its default is a few
tokens at a time on wide tables, which is several times slower).
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py would shadow the standard module

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from _common import Row, in_child, interleaved, main, row

from tiebeam.nn import chunked_loss, tied_cross_entropy

SHAPES = [(50257, 768, 4096), (128256, 2048, 1024), (1024, 512, 16384)]  # vocabulary, width, tokens
QUICK = [(50257, 768, 1024), (128256, 2048, 512), (1024, 512, 4096)]
Side = Callable[[], object]


def inputs(vocab: int, dim: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(tokens, dim, generator=generator)
    W = torch.randn(vocab, dim, generator=generator).mul_(0.02)
    return h.requires_grad_(), W.requires_grad_(), torch.randint(vocab, (tokens,), generator=generator)


def plain(h: torch.Tensor, W: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(h, W), targets)


def torch_chunked(h: torch.Tensor, W: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=min(512, len(h)), chunking_method=None)
    return F.linear_cross_entropy(h, W, targets, options=options)


LOSSES = {"plain": plain, "torch chunked": torch_chunked, "ours": tied_cross_entropy}


def loss_named(name: str) -> Callable[..., torch.Tensor]:
    if name == "torch.compile":
        return torch.compile(plain)
    if name == "cut-cross-entropy":
        from cut_cross_entropy import linear_cross_entropy

        return lambda h, W, targets: linear_cross_entropy(h, W, targets, impl="torch_compile")
    return LOSSES[name]


def available() -> list[str]:
    names = ["plain", "ours"]
    if hasattr(F, "linear_cross_entropy"):
        names.append("torch chunked")
    for name in ("torch.compile", "cut-cross-entropy"):
        try:
            h, W, targets = inputs(32, 8, 16)
            loss_named(name)(h, W, targets).backward()
            names.append(name)
        except Exception as problem:  # a peer that is not installed, or a machine without a compiler
            print(f"without {name}: {str(problem).splitlines()[0]}", file=sys.stderr)
    return names


def step(loss: Callable[..., torch.Tensor], h: torch.Tensor, W: torch.Tensor, targets: torch.Tensor) -> None:
    h.grad = W.grad = None
    loss(h, W, targets).backward()


def three_products(h: torch.Tensor, W: torch.Tensor) -> Side:
    """The lower bound: logits, dh and dW as matrix products into existing buffers."""
    logits, dh, dW = torch.empty(len(h), len(W)), torch.empty_like(h), torch.empty_like(W)
    h, W = h.detach(), W.detach()

    def run() -> None:
        torch.mm(h, W.t(), out=logits)
        torch.mm(logits, W, out=dh)
        torch.mm(logits.t(), h, out=dW)

    return run


def reused(h: torch.Tensor, W: torch.Tensor, targets: torch.Tensor) -> Side:
    """Ours without autograd, into existing gradient buffers."""
    dh, dW = torch.empty_like(h).detach(), torch.empty_like(W).detach()
    h, W = h.detach(), W.detach()
    weight = torch.full((len(h),), 1 / len(h))
    chunk = chunked_loss.default_chunk(len(h), *W.shape)
    work = chunked_loss.Work(h, W, targets, weight, None, chunked_loss.Shape(), chunk, torch.float32, dh=dh, dW=dW)
    return lambda: chunked_loss.losses_and_gradients(work)


MEMORY = """
import sys
sys.path.append(sys.argv[1])
import json, torch
from loss import inputs, loss_named, step

def status(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))

name, shape = sys.argv[2], [int(x) for x in sys.argv[3:]]
loss = loss_named(name)
step(loss, *inputs(*(shape if name in ("torch.compile", "cut-cross-entropy") else (64, 16, 32))))
h, W, targets = inputs(*shape)
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # reset the high-water mark
step(loss, h, W, targets)
print(json.dumps({"beyond": status("VmHWM") - before - 4 * (h.numel() + W.numel())}))
"""


def bytes_beyond_gradients(name: str, shape: tuple[int, int, int]) -> float:
    """Peak memory of one step beyond dh and dW, in a subprocess."""
    return in_child(MEMORY, str(Path(__file__).parent), name, *map(str, shape))["beyond"]


def rows(quick: bool) -> Iterator[Row]:
    names = available()
    for shape in QUICK if quick else SHAPES:
        vocab, dim, tokens = shape
        label = f"{vocab} x {dim}, {tokens} tokens"
        h, W, targets = inputs(*shape)
        sides: dict[str, Side] = {"bound": three_products(h, W), "reused": reused(h, W, targets)}
        sides |= {name: partial(step, loss_named(name), h, W, targets) for name in names}
        best = interleaved(sides, rounds=2 if quick else 4)
        ours = best["ours"]
        yield row(f"{label}: time", ours / best["bound"], "its three matrix products", "<= 1.10")
        yield row(
            f"{label}: time, buffers reused", best["reused"] / best["bound"], "its three matrix products", "<= 1.05"
        )
        yield row(
            f"{label}: time", ours / best["plain"], "F.linear + F.cross_entropy", "<= 0.80" if dim == 768 else "<= 1.0"
        )
        for name in names:
            if name not in ("plain", "ours"):
                yield row(f"{label}: time", ours / best[name], name, "<= 1.0")
        del sides, h, W, targets
        memory = {name: bytes_beyond_gradients(name, shape) for name in ("ours", "plain")}
        allowed = 4 * chunked_loss.default_chunk(tokens, vocab, dim) * vocab + 100e6
        yield row(
            f"{label}: memory beyond the gradients", memory["ours"] / allowed, "a chunk of logits + 100 MB", "<= 1.0"
        )
        yield row(
            f"{label}: memory beyond the gradients",
            memory["ours"] / memory["plain"],
            "F.linear + F.cross_entropy",
            "<= 0.5",
        )


if __name__ == "__main__":
    main(rows)
