"""DDP: every rank has the full model, gradients are averaged. The base class serves a single rank.

A `Parallelism` says how one model is laid out over the ranks: how it is wrapped, when gradients are synchronized, and
how full tensors are put together again. `parallelism_for(distribution)` picks the class of the layout.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tiebeam.nn import GPT
from tiebeam.nn.collectives import RankGroup
from tiebeam.nn.gradient_share import Rows
from tiebeam.train.distributed.environment import Distribution
from tiebeam.train.distributed_muon import Spread, between_replicas


class Parallelism:
    """One rank: the model is itself, and nothing is exchanged."""

    muon_spread: Spread | None = None
    """How Muon distributes its Newton-Schulz steps; None computes all of them on this rank."""

    loss_weight = 1.0
    """Factor that turns the summed loss returned by the model into this rank's contribution."""

    def __init__(self, distribution: Distribution) -> None:
        self.distribution = distribution

    def wrap(self, model: GPT, compile_model: bool = False) -> Any:
        """The callable for forward passes in place of `model`, which stays usable under its wrapper."""
        return torch.compile(model) if compile_model else model

    @contextmanager
    def micro_batch(self, forward: Any, last: bool) -> Iterator[None]:
        """Around forward and backward: gradients are synchronized only with the last micro-batch of a step."""
        yield

    def reshard(self, model: GPT) -> None:
        """After a forward pass without backward: free the parameters that were gathered for it."""

    def gather_gradient(self, gradient: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """The averaged gradient of the embedding, and the rows that the lookups of all ranks added to it."""
        return gradient, rows

    def full_model(self, model: GPT) -> GPT | None:
        """The model with full tensors on rank 0; None on the others."""
        return model if self.distribution.is_main else None

    def parameter_count(self, model: GPT) -> int:
        """Parameters of the full model."""
        return sum(parameter.numel() for parameter in model.parameters())


class DDP(Parallelism):
    """`torch.nn.parallel.DistributedDataParallel`."""

    muon_spread = staticmethod(between_replicas)

    def wrap(self, model: GPT, compile_model: bool = False) -> Any:
        from torch.nn.parallel import DistributedDataParallel

        gc.collect()  # an earlier wrapper's hooks stay on the parameters until it is collected
        cuda = model.table.weight.device.type == "cuda"
        return DistributedDataParallel(
            super().wrap(model, compile_model),
            device_ids=[self.distribution.local_rank] if cuda else None,
            gradient_as_bucket_view=True,
            # A one-layer golf model has skip weights of size 0, which never get a gradient.
            find_unused_parameters=any(parameter.numel() == 0 for parameter in model.parameters()),
        )

    @contextmanager
    def micro_batch(self, forward: Any, last: bool) -> Iterator[None]:
        if last:
            yield
        else:
            with forward.no_sync():
                yield

    def gather_gradient(self, gradient: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        if not rows:
            return gradient, rows
        ranks = RankGroup.of()
        ids = torch.cat([i.reshape(-1) for i, _ in rows])
        lookup_gradients = torch.cat([g.reshape(-1, g.shape[-1]) for _, g in rows]) / ranks.size
        return gradient, [(ranks.all_gather(ids), ranks.all_gather(lookup_gradients))]


def parallelism_for(distribution: Distribution) -> Parallelism:
    """The `Parallelism` of a distribution's layout."""
    if distribution.world_size == 1:
        return Parallelism(distribution)
    if distribution.layout == "fsdp":
        from tiebeam.train.distributed.fsdp2 import FSDP2

        return FSDP2(distribution)
    if distribution.layout == "vocab":
        from tiebeam.train.distributed.vocab_sharding import VocabSharding

        return VocabSharding(distribution)
    return DDP(distribution)
