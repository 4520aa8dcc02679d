"""Which stored tensor a module of the trained model is: by name, by family, or by its role as embedding or LM head.

An adapter names modules as they are in memory, a checkpoint as its writer stored them. Between transformers 4 and 5,
and between a language model and the same one inside a multimodal one, only leading levels differ (`model.layers.0.`,
`language_model.model.layers.0.`, `model.language_model.layers.0.`), so names are compared without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import BadRequest
from tiebeam.families.registry import Architecture, families
from tiebeam.families.tensor_names import WRAPPERS, plain
from tiebeam.surgery.gguf_to_hf import Place, gguf_places
from tiebeam.surgery.packed_parts import packed_by
from tiebeam.surgery.source import Source

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LEADING = WRAPPERS | {"transformer", "gpt_neox"}
_HEADS = {"unembed_tokens": "Tinker", "lm_head": "", "embed_out": ""}
"""Names of the head that need no architecture to be known; Tinker's adapters say unembed_tokens."""


@dataclass(frozen=True, eq=False)
class Target:
    """A stored tensor. `order`: see LowRank. `flipped`: stored [in, out]; None: not known. `fixed`: why its values
    cannot be replaced by a copy."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    order: NDArray[np.intp] | None = None
    flipped: bool | None = None
    fixed: str = ""


@dataclass(frozen=True)
class Targets:
    """The tensors of one checkpoint, found by the names of the trained model.

    stored     name: (shape, dtype)
    hf_names   Hugging Face name: its place, where the names are those of a GGUF
    """

    stored: Mapping[str, tuple[tuple[int, ...], str]]
    embed: str | None
    head: str | None
    architecture: Architecture | None
    conv1d: bool | None
    hf_names: Mapping[str, Place] | None = None
    written: bool = True
    """Whether the tensors will be written, so that their types must be floats."""

    @classmethod
    def of_layout(cls, source: Source) -> Targets:
        """The tensors as they will be written."""
        if source.is_gguf:
            return cls.of_checkpoint(source)
        stored = {entry.name: (entry.shape, entry.dtype) for shard in source.layout.shards for entry in shard.entries}
        config = source.layout.config or {}
        return cls(stored, source.embed, source.head, source.architecture, _conv1d(config.get("model_type")))

    @classmethod
    def of_checkpoint(cls, source: Source) -> Targets:
        """The tensors as the base stores them."""
        checkpoint, pair = source.checkpoint, source.report.pair
        stored = {name: (info.shape, info.dtype) for name, info in checkpoint.tensors.items()}
        embed, head = (matrix.name if matrix else None for matrix in (pair.embed, pair.head))
        places = gguf_places(checkpoint) if checkpoint.format == "gguf" else None
        conv1d = False if places is not None else _conv1d((checkpoint.config or {}).get("model_type"))
        return cls(stored, embed, head, source.architecture, conv1d, places)

    def role(self, module: str) -> str | None:
        """ "embed" or "head" if the module is one of the pair."""
        short = _short(f"{module}.weight")
        leaf = module.rpartition(".")[2]
        if short in self._short_names("embed"):
            return "embed"
        if short in self._short_names("head") or (leaf in _HEADS and "." not in short.removesuffix(".weight")):
            return "head"
        return None

    def _short_names(self, role: str) -> set[str]:
        own = self.embed if role == "embed" else self.head
        known = (self.architecture.embed if role == "embed" else self.architecture.head) if self.architecture else ()
        names = {_short(name) for name in known}
        if self.hf_names is None:
            return names | ({_short(own)} if own else set())
        return names | {_short(name) for name, place in self.hf_names.items() if place.stored == own}

    def find(self, tensor: str) -> Target | None:
        """The stored tensor that is called `tensor` in the trained model; None if there is none."""
        if self.hf_names is None and tensor in self.stored:
            return self._target(tensor)
        names = self._by_short_name.get(_short(tensor), [])
        if len(names) > 1:
            raise BadRequest(f"{tensor} of the adapter may be {names[0]} or {names[1]} of the base; rename one of them")
        return self._target(names[0]) if names else None

    @cached_property
    def _by_short_name(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.stored if self.hf_names is None else self.hf_names:
            found.setdefault(_short(plain(name)), []).append(name)
        return found

    def _target(self, name: str) -> Target:
        if self.hf_names is None:
            return Target(name, *self.stored[name], flipped=self.conv1d)
        place = self.hf_names[name]
        shape, dtype = self.stored[place.stored]
        fixed = "GGUF stores it with all experts in one tensor" if place.expert is not None else ""
        order = None
        if place.change is not None:
            order = _row_order(place, shape[0])
            fixed = fixed or ("" if order is not None else "GGUF stores other numbers for it")
        return Target(place.stored, shape, dtype, order, False, fixed or ("" if not place.transposed else "transposed"))

    def packed(self, module: str) -> str | None:
        """The quantiser that packed a module's weight, if one did."""
        dtypes = {name: dtype for name, (_, dtype) in self.stored.items()}
        for ending in ("qweight", "weight_packed", "weight"):
            found = self._by_short_name.get(_short(f"{module}.{ending}")) or self._by_short_name.get(
                _short(plain(f"{module}.{ending}"))
            )
            if found and (method := packed_by(found[0], dtypes)):
                return method
        return None


def _short(name: str) -> str:
    """A name without the levels that may precede a whole model."""
    levels = name.split(".")
    while len(levels) > 2 and levels[0] in _LEADING:
        levels = levels[1:]
    return ".".join(levels)


def _conv1d(model_type: Any) -> bool | None:
    """Whether the family stores the matrices of its layers [in, out]; None: not known."""
    family = families().get(model_type) if isinstance(model_type, str) else None
    return None if family is None or family.names is None else family.names.transposed


def _row_order(place: Place, rows: int) -> NDArray[np.intp] | None:
    """Where the model's rows are stored; None if the change is not an order of rows."""
    import numpy as np

    assert place.change is not None
    moved = place.change(np.arange(rows, dtype=np.float32)[:, None])[:, 0].astype(np.intp)
    return moved if np.array_equal(np.sort(moved), np.arange(rows)) else None


def names_of(tensors: Iterable[str], limit: int = 3) -> str:
    """A few names, and how many more there are."""
    listed = list(tensors)
    more = f" and {len(listed) - limit:,} more" if len(listed) > limit else ""
    return f"{', '.join(listed[:limit])}{more}"


def is_same_model(checkpoint: Checkpoint, named: str | None) -> bool:
    """Whether the adapter's recorded base may be this one, by the last part of its name."""
    if named is None:
        return True
    ours = (checkpoint.source, str((checkpoint.config or {}).get("_name_or_path", "")))
    last = named.rstrip("/").rpartition("/")[2].lower()
    return any(last == name.rstrip("/").rpartition("/")[2].partition("@")[0].lower() for name in ours)
