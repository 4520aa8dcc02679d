"""A training step over its own matrix products, and against nanoGPT's model at the same shape.

The limit is the same step written by hand, without autograd (bench/_by_hand.py). The peer is nanoGPT's block in its
plain form: LayerNorm, learned positions, GELU, one fused qkv product, a tied head with full logits, and one AdamW for
everything. bench/quality.py measures what a minute of training reaches.

    python bench/train.py [--quick] [--json]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import _by_hand
import torch
from _nanogpt import NanoGPT
from harness import Bench, Row, Side, main, timed
from torch import Tensor, nn

from tiebeam.nn import GPT, GPTConfig
from tiebeam.train import LearningRates, Settings, make_optimizers

JOB = "training step over its own matrix products"


def stepper(model: nn.Module, optimizers: list[torch.optim.Optimizer], ids: Tensor) -> Side:
    def run() -> None:
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


def shapes() -> Iterator[tuple[str, GPTConfig, int, str, float]]:
    """Name, configuration, windows in a batch, goal, share of the bench's time."""
    default = Settings(steps=1)
    yield "the default shape", default.model(2048), default.batch, "<= 1.5", 0.12
    # SwiGLU has three matrices: 8/3 of the width costs as much as GELU's 4.
    yield "6 x 384 x 256 x 16, V 4096", GPTConfig(4096, 384, 6, 6, context=256, mlp_dim=1024), 16, "<= 1.15", 1.0


def rows(bench: Bench) -> Iterator[Row]:
    for name, config, batch, goal, share in shapes():
        torch.manual_seed(0)
        ids = torch.randint(config.vocab, (batch, config.context))
        peer = NanoGPT(config.vocab, config.dim, config.layers, config.heads, config.context)
        kinds = ("adamw", "muon") if config.dim < 300 else ("adamw",)  # a step of the larger shape takes seconds
        models = {kind: GPT(config) for kind in kinds}
        attention = (config.layers, batch * config.heads, config.context, config.dim // config.heads)
        ours, twin = models["adamw"], GPT(config)
        for parameter in twin.parameters():
            parameter.grad = torch.randn_like(parameter)
        [optimizer] = make_optimizers(twin.roles(), LearningRates(), "adamw")
        sides: dict[str, Side] = {
            "products": products(ours, ours.table.weight, ids.numel(), attention),
            **{kind: stepper(model, list(make_optimizers(model.roles(), LearningRates(), kind)), ids)
               for kind, model in models.items()},
            "limit": _by_hand.step(twin, optimizer, ids),
            "nanoGPT": stepper(peer, [torch.optim.AdamW(peer.parameters(), lr=1e-3, fused=True)], ids),
        }  # fmt: skip
        if not bench.quick:
            model = GPT(config)
            optimizers = list(make_optimizers(model.roles(), LearningRates(), "adamw"))
            sides["compiled"] = stepper(torch.compile(model), optimizers, ids)
        found = bench.measure(sides, "products", bench.budget * share, judged=("adamw",), fewest=4)
        reason = "the same kernels of torch called by hand, without autograd"
        yield timed(f"training step, {name}", found, "adamw", "its matrix products", goal, bound=">= 1.0",
                    limited_by=reason, limit="limit", job=JOB)  # fmt: skip
        if "muon" in sides:
            yield timed(f"training step with Muon, {name}", found, "muon", "its matrix products", bound=">= 1.0",
                        limited_by="Muon's own products")  # fmt: skip
        if "compiled" in sides:
            yield timed(f"training step, compiled, {name}", found, "compiled", "its matrix products", goal,
                        bound=">= 1.0", limited_by=reason, limit="limit", job=JOB)  # fmt: skip
        if config.kv_heads == config.heads:
            yield timed(f"training step against nanoGPT, {name}", found, "adamw", "nanoGPT's block", "<= 1.1",
                        over="nanoGPT", limited_by="the matrix products", limit="products")  # fmt: skip


if __name__ == "__main__":
    main(rows, memory=4)
