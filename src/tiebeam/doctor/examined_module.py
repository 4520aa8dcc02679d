"""What a rule's check reads of a model in memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from tiebeam.families.config_levels import FLAG

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tiebeam.doctor.row_samples import RowChange


class Held(NamedTuple):
    """A parameter in a group of an optimizer."""

    optimizer: str
    number: int
    group: int
    parameter: torch.Tensor

    def __str__(self) -> str:
        return f"{self.optimizer} {self.number} group {self.group}"


@dataclass(frozen=True)
class ExaminedModule:
    """A model in memory. `embed` and `head` are its parameters now, `tied` is what the pair should be, `unit_normal` is
    whether the embedding started at N(0, 1), `stage` is what was done to it last. `changes` are the rows that a stage
    changed which should have kept them, `copy_changes` those in which a copy of the model differs, each by "embedding"
    and "head"; `saved` says how a written checkpoint differs from the model."""

    model: nn.Module
    embed: nn.Parameter
    head: nn.Parameter | None
    tied: bool
    unit_normal: bool = False
    optimizers: tuple[torch.optim.Optimizer, ...] = ()
    stage: str = ""
    changes: Mapping[str, RowChange] = field(default_factory=dict)
    copy_changes: Mapping[str, RowChange] = field(default_factory=dict)
    saved: str = ""

    @property
    def config(self) -> Any:
        return getattr(self.model, "config", None)

    @property
    def flag(self) -> Any:
        return getattr(self.config, FLAG, None)

    @property
    def after(self) -> str:
        return f" after {self.stage}" if self.stage else ""

    @property
    def one_parameter(self) -> bool:
        return self.head is None or self.embed is self.head

    @property
    def one_storage(self) -> bool:
        """Whether two Parameter objects use the same memory."""
        return not self.one_parameter and same_storage(self.embed, self.head)

    @property
    def both_sharded(self) -> bool:
        return all(hasattr(p, "device_mesh") for p in (self.embed, self.head))

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """Every parameter of the watched optimizers that has the shape of the embedding or the head."""
        shapes = [p.shape for p in (self.embed, self.head) if p is not None]
        return tuple(
            Held(type(optimizer).__name__, number, index, parameter)
            for number, optimizer in enumerate(self.optimizers)
            for index, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
            if parameter.shape in shapes
        )

    @cached_property
    def held_pair(self) -> tuple[Held, ...]:
        """Those of them that are the embedding or the head."""
        pair = [p for p in (self.embed, self.head) if p is not None]
        return tuple(h for h in self.held if any(h.parameter is p or same_storage(h.parameter, p) for p in pair))


def same_storage(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    """Whether two tensors of one shape start at the same address."""
    if b is None or a.is_meta or b.is_meta or a.shape != b.shape:
        return False
    try:
        return a.data_ptr() == b.data_ptr() and a.data_ptr() != 0
    except RuntimeError:  # wrapper subclasses have no storage
        return False


def transformers_major() -> int:
    """The major version of transformers if it is imported, else 0."""
    module = sys.modules.get("transformers")
    return int(module.__version__.split(".")[0]) if module is not None else 0
