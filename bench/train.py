"""Training: steps a second against nanoGPT's model at the same shape, and bits per byte after an equal time.

The peer is nanoGPT's block in its obvious form: LayerNorm, learned positions, GELU, one fused qkv product, a tied
head through plain logits, and one AdamW for everything. The control for quality is our own model under that AdamW.

    python bench/train.py [--quick] [--json]
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py is named like a standard module, and the standard one must win

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from _common import Row, interleaved, main, row
from torch import Tensor, nn

from tiebeam.corpus import build_corpus
from tiebeam.nn import GPT, GPTConfig
from tiebeam.train import Rates, Settings, make_optimizers, train


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        B, T, D = x.shape
        q, k, v = (p.view(B, T, self.heads, -1).transpose(1, 2) for p in self.qkv(self.first(x)).split(D, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.second(x))))


class NanoGPT(nn.Module):
    def __init__(self, vocab: int, dim: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.apply(self._init)
        self.lm_head.weight = self.wte.weight

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:  # [B, T], [B, T] -> []
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def stepper(model: nn.Module, optimizers: list[torch.optim.Optimizer], ids: Tensor, steps: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(steps):
            model(ids, ids.roll(-1, 1)).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

    return run


def speed(quick: bool) -> Iterator[Row]:
    """Tokens a second at a shape that both models share in width, depth and parameters."""
    shapes = [
        ("4 layers, 128 wide, V 256", 256, 128, 4, 4, 64, 12),
        ("6 layers, 384 wide, V 4096", 4096, 384, 6, 6, 256, 8),
    ]
    for name, vocab, dim, layers, heads, context, batch in shapes[: 1 if quick else 2]:
        torch.manual_seed(0)
        ids = torch.randint(vocab, (batch, context))
        peer = NanoGPT(vocab, dim, layers, heads, context)
        # SwiGLU has three products: 8/3 of the width costs what GELU's 4 cost.
        ours = GPT(GPTConfig(vocab, dim, layers, heads, context=context, mlp_dim=8 * dim // 3 // 32 * 32))
        adamw = [torch.optim.AdamW(peer.parameters(), lr=1e-3)]
        sides = {
            "nanoGPT": stepper(peer, adamw, ids, 3),
            "ours, AdamW": stepper(ours, list(make_optimizers(ours.roles(), Rates(), "adamw")), ids, 3),
            "ours, Muon": stepper(ours, list(make_optimizers(ours.roles(), Rates(), "muon")), ids, 3),
        }
        best = interleaved(sides, rounds=3 if quick else 7)
        for side in ("ours, AdamW", "ours, Muon"):
            yield row(f"{side}: time a step, {name}", best[side] / best["nanoGPT"], "nanoGPT's block, eager", "<= 1.1")


def quality(quick: bool) -> Iterator[Row]:
    """Bits per byte after the same time on the same text: ours against one AdamW at one rate."""
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
