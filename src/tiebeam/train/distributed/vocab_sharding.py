"""Vocabulary sharding: the layers are replicated (DDP), the embedding and the head are sharded by rows.

Every rank holds V/N rows of the embedding and the head, and no rank ever gathers them: see
tiebeam.nn.sharded_embedding.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tiebeam.nn import GPT, ShardedEmbedding, exclude_from_ddp, gather_model, shard_vocabulary, sharded_parameters
from tiebeam.nn.gradient_share import Rows
from tiebeam.train.distributed.ddp import DDP


class VocabSharding(DDP):
    """DDP around a model whose embedding and head are a `ShardedEmbedding`."""

    @property
    def loss_weight(self) -> float:  # type: ignore[override]
        return 1 / self.distribution.world_size  # the sharded loss sums the tokens of all ranks

    def wrap(self, model: GPT, compile_model: bool = False) -> Any:
        if not isinstance(model.table, ShardedEmbedding):
            shard_vocabulary(model)
        exclude_from_ddp(model)
        return super().wrap(model, compile_model)

    def gather_gradient(self, gradient: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        return gradient, rows  # both are complete for this rank's rows; sums over rows are added up later

    def full_model(self, model: GPT) -> GPT | None:
        return gather_model(model)

    def parameter_count(self, model: GPT) -> int:
        sharded = {id(block) for block in sharded_parameters(model).values()}
        return sum(model.config.vocab * p.shape[1] if id(p) in sharded else p.numel() for p in model.parameters())
