"""FSDP2: every rank holds a shard of every tensor.

Each block gathers its parameters when it runs. The embedding, the head and the final norm form one group at the root,
so a tied pair stays one parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tiebeam.nn import GPT
from tiebeam.nn.collectives import full_tensor
from tiebeam.nn.gradient_share import Rows
from tiebeam.train.distributed.ddp import DDP
from tiebeam.train.distributed_muon import between_shards


class FSDP2(DDP):
    """`torch.distributed.fsdp.fully_shard` on every block and on the root."""

    muon_spread = staticmethod(between_shards)

    def wrap(self, model: GPT, compile_model: bool = False) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(model.table.weight.device.type, (self.distribution.world_size,))
        for block in model.blocks if model.config.arch == "golf" else model.model.layers:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    @contextmanager
    def micro_batch(self, forward: Any, last: bool) -> Iterator[None]:
        forward.set_requires_gradient_sync(last)
        yield

    def reshard(self, model: GPT) -> None:
        model.reshard()  # type: ignore[operator]

    def gather_gradient(self, gradient: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        return super().gather_gradient(full_tensor(gradient) if rows else gradient, rows)

    def full_model(self, model: GPT) -> GPT | None:
        tensors = {}
        for name, tensor in model.state_dict().items():
            full = full_tensor(tensor)  # a collective, also on the ranks that drop the result
            if self.distribution.is_main:
                tensors[name] = full.detach()
        if not self.distribution.is_main:
            return None
        with torch.device("meta"):
            plain = GPT(model.config)
        plain.load_state_dict(tensors, assign=True)
        return plain
