"""MLX against torch from the same weights: differences as fractions of the tolerance, and memory of the loss.

The curves are 20 training steps in float32 (torch's Muon would use bfloat16 on CPUs that have it; that is off here).
python bench/parity.py [--quick] [--json]
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from harness import Bench, Row, main, row
from mlx.utils import tree_flatten

from tiebeam import nn
from tiebeam.corpus import Corpus, build_corpus
from tiebeam.train import LearningRates, RunDirectory, Settings, muon, train
from tiebeam.train.backends import mlx
from tiebeam.train.backends.mlx.gradients import accumulated

CASES: list[dict[str, Any]] = [
    {"arch": "standard", "tie": True},
    {"arch": "standard", "tie": False},
    {"arch": "golf", "tie": True, "softcap": 15.0, "z_loss": 1e-4},
    {"arch": "golf", "tie": False, "softcap": 15.0},
    {"arch": "standard", "tie": 0.5, "accumulate": 2},
]
SHAPE = {"layers": 2, "dim": 64, "heads": 4, "kv_heads": 2, "mlp_dim": 128, "context": 64, "batch_tokens": 512}


def twins(settings: Settings, vocab: int) -> tuple[nn.GPT, mlx.GPT]:
    torch.manual_seed(settings.seed)
    one = nn.GPT(settings.model(vocab))
    other = mlx.GPT(one.config)
    other.load({name: tensor.detach().numpy() for name, tensor in one.state_dict().items()})
    return one, other


def differences(settings: Settings, vocab: int) -> tuple[float, float]:
    """The difference of the losses, and of the gradients relative to each tensor's largest value."""
    one, other = twins(settings, vocab)
    with torch.no_grad():  # away from the initial values, where whole matrices and their gradients are zero
        for parameter in one.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    other.load({name: tensor.detach().numpy() for name, tensor in one.state_dict().items()})
    x, y = np.random.default_rng(0).integers(0, vocab, (2, settings.batch, settings.context))
    loss = one(torch.from_numpy(x), torch.from_numpy(y), z_loss=settings.z_loss)
    loss.backward()
    found = accumulated(other, iter([(x, y)]), 1, z_loss=settings.z_loss)
    gradients = dict(tree_flatten(found.tree))
    furthest = max(
        float(np.abs(np.array(gradients[name]) - p.grad.numpy()).max() / p.grad.abs().max())
        for name, p in one.named_parameters()
        if p.grad is not None
    )
    return abs(found.loss - loss.item()), furthest


def curves(settings: dict[str, Any], corpus: Corpus, where: Path) -> float:
    """The largest difference of two 20-step curves."""
    on_torch = Settings(**settings, threads=1)
    on_mlx = Settings(**settings, backend="mlx")
    train(on_torch, corpus, where / "torch", force=True)
    train(on_mlx, corpus, where / "mlx", force=True, model=twins(on_mlx, corpus.vocab)[1])
    one, other = (
        [record["loss"] for record in RunDirectory.open(where / name).metrics() if "loss" in record]
        for name in ("torch", "mlx")
    )
    assert len(one) == len(other) == 20
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def memory(tokens: int, vocab: int, dim: int) -> float:
    """Peak memory of loss and gradients, relative to the full logits."""
    h, W = mx.random.normal((tokens, dim)), mx.random.normal((vocab, dim)) * 0.02
    targets = mx.random.randint(0, vocab, (tokens,))
    mx.eval(h, W, targets)
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(mx.value_and_grad(lambda h, W: mlx.tied_cross_entropy(h, W, targets), argnums=(0, 1))(h, W))
    return (mx.get_peak_memory() - before) / (4 * tokens * vocab)


def rows(bench: Bench) -> Iterator[Row]:
    muon.fast_dtype = lambda device: torch.float32
    reason = "the order of float32 sums"
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch)
        for i in range(40):
            (where / f"{i}.txt").write_text("".join(f"{j} is {math.isqrt(j * i)} and {j % 7}\n" for j in range(200)))
        corpus = build_corpus(sorted(where.glob("*.txt")), where / "corpus", vocab=400)
        for case in CASES[:2] if bench.quick else CASES:
            name = ", ".join(f"{key} {value}" for key, value in case.items())
            settings = {**SHAPE, **case, "steps": 20, "log_every": 1, "validate_every": 1.0, "rates": LearningRates()}
            loss, gradient = differences(Settings(**settings), corpus.vocab)
            curve = curves(settings, corpus, where)
            yield row(f"loss difference: {name}", loss / 1e-4, "1e-4 nats", "<= 1.0", limited_by=reason)
            yield row(f"gradient difference: {name}", gradient / 1e-3, "1e-3 of each tensor's largest value", "<= 1.0",
                      limited_by=reason)  # fmt: skip
            yield row(f"difference over 20 steps: {name}", curve / 2e-3, "2e-3 nats", "<= 1.0", limited_by=reason)
    tokens, vocab, dim = 4096, 50_257, 64
    shape = f"{tokens:,} tokens, V {vocab:,}, d {dim}"
    yield row(f"peak memory of the loss: {shape}", memory(tokens, vocab, dim), "its logits", "<= 0.5",
              limited_by="one chunk of logits must exist")  # fmt: skip


if __name__ == "__main__":
    main(rows)
