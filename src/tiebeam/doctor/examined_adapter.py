"""What a rule's check reads of a PEFT adapter beside its base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.inspection import Report
from tiebeam.pair import Matrix, Tie


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
