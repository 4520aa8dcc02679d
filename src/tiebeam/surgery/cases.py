"""A source opened for surgery: its report, the material its target is made of, and what that calls the two ends.

The target speaks the source's own language, except where it cannot: a GGUF that is to become a Hugging Face
directory is converted first, and from then on everything is said in the names of the converted model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any

from tiebeam import families
from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.errors import BadRequest
from tiebeam.families.config_levels import FLAG, config_levels, flag_levels
from tiebeam.inspection import Report, inspect
from tiebeam.surgery.output_shards import Material, gguf_material, local_files, material_of


@dataclass(frozen=True)
class Case:
    """`embed` and `head` are the names of the stored ends in the material. `by_hand`: a person named the ends;
    `wanted` are the names given for an end that is to be written."""

    checkpoint: Checkpoint
    report: Report
    material: Material
    embed: str | None
    head: str | None
    wanted: Mapping[str, str] = field(default_factory=dict)
    by_hand: bool = False

    @property
    def is_gguf(self) -> bool:
        """Whether the target is a GGUF file."""
        return self.material.shards[0].container is not None

    @property
    def converted(self) -> bool:
        """Whether the target is in another format than the source."""
        return self.checkpoint.format != ("gguf" if self.is_gguf else "safetensors")

    @cached_property
    def architecture(self) -> families.Architecture | None:
        config = self.material.config or {}
        model_type = config.get("model_type")
        return families.lookup(model_type if isinstance(model_type, str) else self.checkpoint.architecture)

    @cached_property
    def stored(self) -> frozenset[str]:
        return frozenset(entry.name for shard in self.material.shards for entry in shard.entries)

    def name_of(self, end: str) -> str:
        """What the other end is called in this model's files: of the names known, the one nearest to what is stored."""
        if end in self.wanted:
            return self.wanted[end]
        if self.is_gguf:
            return {"embed": "token_embd.weight", "head": "output.weight"}[end]
        other = self.head if end == "embed" else self.embed
        assert other is not None
        known: list[str] = list(getattr(self.architecture, end)) if self.architecture else []
        if not known:
            raise BadRequest(
                f"where {self.checkpoint.architecture or 'this model'} keeps its {end} is not known; name it (--{end})"
            )
        if self.architecture and self.architecture.model_type == "gpt_neox" and end == "head":
            return "embed_out.weight"  # its name on disk in every version; lm_head is its name in memory
        return max(known, key=lambda name: (_common(name, other), -known.index(name)))

    def flags(self) -> dict[tuple[str, ...], Any]:
        """Every place of the config where some loader reads the flag, with what it says now."""
        if self.material.config is None:
            return {}
        absent: dict[tuple[str, ...], Any] = {(*path, FLAG): None for path, _ in config_levels(self.material.config)}
        legacy = self.architecture.legacy_flag if self.architecture else None
        return absent | flag_levels(self.material.config, legacy)


def open_case(
    source: str | os.PathLike[str] | Checkpoint,
    *,
    embed: str | None = None,
    head: str | None = None,
    target: str | os.PathLike[str] | None = None,
    dtype: str = "F32",
) -> Case:
    """Open `source` for surgery. `target` decides what a GGUF becomes: named *.gguf it stays one."""
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    local_files(checkpoint)
    given = {"embed": embed, "head": head}
    report = inspect(checkpoint, **{end: name for end, name in given.items() if name in checkpoint.tensors})
    return case_of(checkpoint, report, given, target, dtype)


def case_of(
    checkpoint: Checkpoint,
    report: Report,
    given: dict[str, str | None] | None = None,
    target: str | os.PathLike[str] | None = None,
    dtype: str = "F32",
) -> Case:
    """The case of a model that has been inspected already."""
    wanted = {end: name for end, name in (given or {}).items() if name and name not in checkpoint.tensors}
    ends = {"embed": report.pair.embed, "head": report.pair.head}
    names = {end: matrix.name if matrix else None for end, matrix in ends.items()}
    stays = target is not None and os.fspath(target).endswith(".gguf")
    if checkpoint.format != "gguf":
        if stays:
            raise BadRequest(f"a {checkpoint.format} model cannot be written as GGUF here; use llama.cpp's converter")
        material = material_of(checkpoint)
    elif stays:
        material = gguf_material(checkpoint)
    else:
        from tiebeam.surgery.gguf_to_hf import convert

        material, renamed = convert(checkpoint, dtype)
        names = {end: renamed[name] if name else None for end, name in names.items()}
    return Case(checkpoint, report, material, names["embed"], names["head"], wanted, any((given or {}).values()))


def _common(left: str, right: str) -> int:
    """How many leading dotted parts two names share."""
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(left.split("."), right.split("."), strict=False))
    return len(list(shared))
