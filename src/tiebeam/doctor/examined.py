"""What a rule's check reads: an examined checkpoint, an adapter beside its base, or a model in memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.file_roles import WEIGHT_SUFFIXES, found_by_loaders
from tiebeam.families import lookup
from tiebeam.families.config_levels import FLAG, flag_levels
from tiebeam.families.never_tied import why_never_tied
from tiebeam.families.tensor_names import plain, unwrapped, wrapper_before
from tiebeam.inspection import Report
from tiebeam.pair import Matrix, Pair, Tie

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tiebeam.doctor.row_samples import RowChange
    from tiebeam.inspection.row_health import RowHealth


@dataclass(frozen=True)
class ExaminedCheckpoint:
    """A checkpoint and its report. `rows` is the health of its rows, if they were read; `all_rows` says that every
    finding about them was asked for, not only those that matter."""

    checkpoint: Checkpoint
    report: Report
    rows: RowHealth | None = None
    all_rows: bool = True

    @property
    def pair(self) -> Pair:
        return self.report.pair

    @property
    def tie(self) -> Tie:
        return self.report.tie

    @property
    def is_gguf(self) -> bool:
        return self.checkpoint.format == "gguf"

    @property
    def declares(self) -> bool:
        """Whether there is a pair and a config.json that could declare a tie."""
        return not self.is_gguf and self.checkpoint.config is not None and self.tie is not Tie.NONE

    @cached_property
    def flags(self) -> dict[tuple[str, ...], Any]:
        """Every tie flag in the config, by its path."""
        return flag_levels(self.checkpoint.config)

    @property
    def is_for_transformers(self) -> bool:
        """Whether transformers could be pointed at it: weights that are not GGUF, and a config with a model type."""
        named = isinstance((self.checkpoint.config or {}).get("model_type"), str)
        return named and self.checkpoint.format in ("safetensors", "pytorch", "npz")

    @cached_property
    def wrapped_names(self) -> dict[str, str]:
        """stored name: the model's own name, for the names that a wrapper changed."""
        if not self.is_for_transformers:
            return {}
        return unwrapped(self.checkpoint.tensors) or self._doubled_names

    @property
    def _doubled_names(self) -> dict[str, str]:
        """The names under `model.model.`, if `model.` is there once too often (the module of a trainer was saved)."""
        architecture = lookup(self.report.architecture)
        if architecture is None or self.pair.embed is None:
            return {}
        leads = {wrapper_before(plain(self.pair.embed.name), name) for name in architecture.embed}
        if "model." not in leads or "" in leads:
            return {}
        head = tuple(f"model.{name}" for name in architecture.head)
        return {
            name: name.removeprefix("model.")
            for name in self.checkpoint.tensors
            if name.startswith("model.model.") or name in head
        }

    @cached_property
    def foreign_name(self) -> str | None:
        """The embedding or head, if it is stored under a name of another architecture and the other one is not."""
        architecture = lookup(self.report.architecture)
        if architecture is None or not self.is_for_transformers or not architecture.head:
            return None
        pair = ((self.pair.embed, architecture.embed), (self.pair.head, architecture.head))
        own = [any(wrapper_before(plain(m.name), name) is not None for name in known) if m else None
               for m, known in pair]  # fmt: skip
        if sorted(map(str, own)) != ["False", "True"]:
            return None
        foreign = pair[own.index(False)][0]
        return foreign.name if foreign else None

    @property
    def unfound_files(self) -> tuple[str, ...]:
        """The weight files, if this is a directory in which transformers looks for other names."""
        stored = sorted({info.file for info in self.checkpoint.tensors.values()})
        named = self.checkpoint.source.endswith((*WEIGHT_SUFFIXES, ".index.json"))  # a person named one file
        if not self.is_for_transformers or named or found_by_loaders(stored, self.checkpoint.files.names()):
            return ()
        return tuple(stored)

    @cached_property
    def invalid_flags(self) -> dict[tuple[str, ...], Any]:
        """The flags in the config that transformers 5 refuses, because they are neither true nor false."""
        top = lookup(self.report.architecture)
        if top is None or not self.is_for_transformers:
            return {}
        found = {}
        for path, value in self.flags.items():
            level: Any = self.checkpoint.config
            for key in path[:-1]:
                level = level[key]
            own = lookup(level.get("model_type")) if isinstance(level.get("model_type"), str) else None
            allowed = (own or top).flag_type
            if not (isinstance(value, bool) or allowed == "any" or (allowed == "nullable" and value is None)):
                found[path] = value
        return found

    @cached_property
    def quantizer(self) -> str:
        """Who packed the weights, where only one family of loaders reads them: "mlx", "bitsandbytes", or "" ."""
        config, names = self.checkpoint.config or {}, self.checkpoint.tensors
        method = config.get("quantization_config")
        if isinstance(method, dict) and method.get("quant_method") == "bitsandbytes":
            return "bitsandbytes"
        mlx = config.get("quantization")
        if isinstance(mlx, dict) and "bits" in mlx and any(name.endswith(".scales") for name in names):
            return "mlx"
        return "bitsandbytes" if any(".quant_state.bitsandbytes__" in name for name in names) else ""

    @property
    def rows_differ(self) -> bool:
        """Whether both matrices are stored with different numbers of rows."""
        return stored_state(self.report) == "rows"

    @property
    def few_rows_differ(self) -> bool:
        """Whether both are stored with one shape, and differ in a few rows only."""
        return self.values_differ and self.report.difference is not None and self.report.difference.few_rows

    @property
    def values_differ(self) -> bool:
        """Whether both are stored with one shape and different values."""
        embed, head = self.pair.embed, self.pair.head
        return embed is not None and head is not None and not self.pair.equal and embed.shape == head.shape

    @property
    def rounded(self) -> bool:
        """Whether the two are equal only up to rounding: two dtypes, or two roundings to a quantised type."""
        embed, head = self.pair.embed, self.pair.head
        assert embed
        assert head
        return embed.dtype != head.dtype or "rounding" in self.report.how

    @property
    def can_tie(self) -> bool:
        """Whether some loader takes the embedding for a missing head of this type."""
        return why_never_tied(lookup(self.checkpoint.architecture), self.checkpoint.architecture, self.is_gguf) is None

    @property
    def comparison(self) -> str:
        """The two names and how their values differ."""
        assert self.pair.embed
        assert self.pair.head
        return f"{self.pair.embed.name} and {self.pair.head.name}: {self.report.how}"


def stored_state(report: Report) -> str:
    """Which matrices the files hold: one (the embedding), head, equal, differ, rows (different row counts), neither."""
    pair = report.pair
    if pair.embed is None:
        return "neither" if pair.head is None else "head"
    if pair.head is None:
        return "one"
    if pair.embed.rows != pair.head.rows and not report.packed:
        return "rows"
    return "equal" if pair.equal else "differ"


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """What an adapter holds for the embedding or for the head."""

    lora: bool = False
    copy: str | None = None
    """The name of a full copy of the matrix."""
    tokens: bool = False
    """Whether single tokens are trained (trainable_token_indices)."""
    rows: int | None = None

    @property
    def touched(self) -> bool:
        return self.lora or self.copy is not None or self.tokens


@dataclass(frozen=True)
class ExaminedAdapter:
    """A PEFT adapter beside its base. `weights` are the adapter's tensors, `config` is its adapter_config.json."""

    weights: Checkpoint
    config: Mapping[str, Any]
    base: Report
    embed: AdapterPart
    head: AdapterPart

    @property
    def base_is_tied(self) -> bool:
        """Whether the base loads as one matrix; two equal ones that are declared untied load as two."""
        declared_untied = self.base.tie is Tie.TWIN and self.base.pair.declared is False
        return self.base.tie in (Tie.SHARED, Tie.TWIN, Tie.SWAPPED) and not declared_untied

    @property
    def breaks_tie(self) -> bool:
        """Whether changing one matrix here breaks a tie: the base is tied and PEFT is not configured to keep it."""
        return self.base_is_tied and self.config.get("ensure_weight_tying") is not True

    @property
    def matrix(self) -> Matrix:
        """The base's embedding, or its head if that is the one that is stored."""
        stored = self.base.pair.embed or self.base.pair.head
        assert stored is not None
        return stored


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
