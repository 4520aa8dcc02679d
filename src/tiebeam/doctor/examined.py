"""What a rule's check reads of a checkpoint. examined_adapter.py and examined_module.py have the same for an adapter
and for a model in memory: a check of a checkpoint needs neither."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.file_roles import WEIGHT_SUFFIXES, found_by_loaders
from tiebeam.families import lookup
from tiebeam.families.config_levels import flag_levels
from tiebeam.families.never_tied import why_never_tied
from tiebeam.families.tensor_names import plain, unwrapped, wrapper_before
from tiebeam.inspection import Report
from tiebeam.pair import Pair, Tie

if TYPE_CHECKING:
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
