"""Training: step time against nanoGPT's model at the same shape, and bits per byte after equal time.

The peer is nanoGPT's block in its plain form: LayerNorm, learned positions, GELU, one fused qkv product, a tied
head with full logits, and one AdamW for everything. The baseline for quality is our own model under that AdamW.

    python bench/train.py [--quick] [--json]
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py would shadow the standard module

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from _common import Row, interleaved, main, row
from _nanogpt import NanoGPT
from torch import Tensor, nn

from tiebeam.corpus import build_corpus
from tiebeam.nn import GPT, GPTConfig
from tiebeam.train import LearningRates, Settings, make_optimizers, train


def stepper(model: nn.Module, optimizers: list[torch.optim.Optimizer], ids: Tensor, steps: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(steps):
            model(ids, ids.roll(-1, 1)).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

    return run


def products(model: nn.Module, head: Tensor, tokens: int, attention: tuple[int, int, int, int]) -> Callable[[], None]:
    """The lower bound: the matrix products of a step, forward and backward. `attention`: layers, B * H, T, d."""
    weights = [m.weight.detach() for m in model.modules() if isinstance(m, nn.Linear) and m.weight is not head]
    weights.append(head.detach())
    sides = {n: torch.randn(tokens, n) for W in weights for n in W.shape}
    inputs = {n: torch.empty(tokens, n) for n in sides}
    gradients = [torch.empty_like(W) for W in weights]
    layers, many, T, d = attention
    q, p = torch.randn(many, T, d), torch.randn(many, T, T)
    out, scores = torch.empty_like(q), torch.empty_like(p)

    def run() -> None:
        for W, dW in zip(weights, gradients, strict=True):
            torch.mm(sides[W.shape[1]], W.t(), out=inputs[W.shape[0]])
            torch.mm(sides[W.shape[0]], W, out=inputs[W.shape[1]])
            torch.mm(sides[W.shape[0]].t(), sides[W.shape[1]], out=dW)
        for _ in range(layers):
            for _ in range(2):  # q k^T and the gradient of the weights
                torch.bmm(q, q.mT, out=scores)
            for _ in range(4):  # the weights times v, and the gradients of v, q and k
                torch.bmm(p, q, out=out)

    return run


SHAPES = [  # the first is nanoGPT's own setting for a laptop CPU
    ("4 layers, 128 wide, V 65", 65, 128, 4, 4, 64, 12, "<= 1.5"),
    ("6 layers, 384 wide, V 4096", 4096, 384, 6, 6, 256, 16, "<= 1.15"),
]
REPEATS = 3


def speed(quick: bool) -> Iterator[Row]:
    """Step time of both models at the same width, depth and parameter count, eager and compiled."""
    for name, vocab, dim, layers, heads, context, batch, floor_goal in SHAPES[: 1 if quick else 2]:
        torch.manual_seed(0)
        ids = torch.randint(vocab, (batch, context))
        # SwiGLU has three matrices: 8/3 of the width costs as much as GELU's 4.
        config = GPTConfig(vocab, dim, layers, heads, context=context, mlp_dim=8 * dim // 3 // 32 * 32)
        sides: dict[str, Callable[[], None]] = {}
        for way in ("eager", "compiled"):
            peer, ours = NanoGPT(vocab, dim, layers, heads, context), GPT(config)
            ours_muon = GPT(config)
            adamw = [torch.optim.AdamW(peer.parameters(), lr=1e-3, fused=True)]
            models = [peer, ours, ours_muon]
            if way == "compiled":
                models = [torch.compile(model) for model in models]
            sides |= {
                f"nanoGPT, {way}": stepper(models[0], adamw, ids, REPEATS),
                f"ours, AdamW, {way}": stepper(
                    models[1], list(make_optimizers(ours.roles(), LearningRates(), "adamw")), ids, REPEATS
                ),
                f"ours, Muon, {way}": stepper(
                    models[2], list(make_optimizers(ours_muon.roles(), LearningRates(), "muon")), ids, REPEATS
                ),
            }
        floor = products(ours, ours.table.weight, ids.numel(), (layers, batch * heads, context, dim // heads))
        sides["floor"] = lambda floor=floor: [floor() for _ in range(REPEATS)]
        best = interleaved(sides, rounds=3 if quick else 7)
        for way in ("eager", "compiled"):
            for side in ("ours, AdamW", "ours, Muon"):
                ratio = best[f"{side}, {way}"] / best[f"nanoGPT, {way}"]
                yield row(f"{side}: step time, {name}", ratio, f"nanoGPT's block, {way}", "<= 1.1")
            ratio = best[f"ours, AdamW, {way}"] / best["floor"]
            yield row(f"ours, AdamW, {way}: step time, {name}", ratio, "its matrix products alone", floor_goal)


def quality(quick: bool) -> Iterator[Row]:
    """Bits per byte after the same time on the same text: ours against one AdamW with one learning rate."""
    minutes = 0.3 if quick else 3.0
    corpus = build_corpus()
    with tempfile.TemporaryDirectory() as scratch:
        found = {
            kind: train(Settings(minutes=minutes, optimizer=kind), corpus, Path(scratch) / kind).final.bpb
            for kind in ("muon", "adamw")
        }
    gain = found["adamw"] - found["muon"]
    name = f"bits per byte under AdamW's after {minutes:g} minutes ({found['muon']:.3f} against {found['adamw']:.3f})"
    yield row(name, gain / 0.15, "0.15 bits", ">= 1.0")


def rows(quick: bool) -> Iterator[Row]:
    yield from speed(quick)
    yield from quality(quick)


if __name__ == "__main__":
    main(rows)
