"""Open a checkpoint for surgery: its report, the files of the target before any edit, and the pair's tensor names.

Tensor names are those of the target. They equal the source's names except when a GGUF is converted to a Hugging Face
directory: then they are the names after conversion.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tiebeam import families
from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.errors import BadRequest
from tiebeam.families.config_levels import FLAG, config_levels, flag_levels
from tiebeam.families.disk_names import embed_name, head_name
from tiebeam.inspection import Report, inspect
from tiebeam.surgery.output_shards import Layout, gguf_layout, layout_of, local_files
from tiebeam.surgery.packed_parts import layer_of


@dataclass(frozen=True)
class Source:
    """A checkpoint that has been inspected, ready for a plan.

    embed, head     names of the stored matrices in the layout; None: not stored
    new_names       names the user gave for a matrix that is still to be written
    named_by_user   whether the user named either matrix
    """

    checkpoint: Checkpoint
    report: Report
    layout: Layout
    embed: str | None
    head: str | None
    new_names: Mapping[str, str] = field(default_factory=dict)
    named_by_user: bool = False

    @property
    def is_gguf(self) -> bool:
        """Whether the target is a GGUF file."""
        return self.layout.shards[0].container is not None

    @property
    def converted(self) -> bool:
        """Whether the target has another format than the source."""
        return self.checkpoint.format != ("gguf" if self.is_gguf else "safetensors")

    @cached_property
    def architecture(self) -> families.Architecture | None:
        config = self.layout.config or {}
        model_type = config.get("model_type")
        return families.lookup(model_type if isinstance(model_type, str) else self.checkpoint.architecture)

    @cached_property
    def stored_names(self) -> frozenset[str]:
        return frozenset(entry.name for shard in self.layout.shards for entry in shard.entries)

    @cached_property
    def dtypes(self) -> dict[str, str]:
        """stored tensor: its element type."""
        return {entry.name: entry.dtype for shard in self.layout.shards for entry in shard.entries}

    @property
    def flag_is_fixed(self) -> bool:
        """Whether the flag must stay as it is: transformers ties this type, or never does, whatever the flag says, or
        reads it as another setting as well."""
        architecture = self.architecture
        if architecture is None or self.layout.config is None:
            return False
        return architecture.flag == "forced" or not architecture.decides or architecture.flag_scales_logits

    def tensor_name(self, role: str) -> str:
        """The name under which this model stores, or would store, its "embed" or "head", in the layout of the other."""
        stored = self.embed if role == "embed" else self.head
        if stored is not None:
            return stored
        return self.new_names.get(role) or self.architecture_name(role)

    def architecture_name(self, role: str) -> str:
        """The name that the architecture gives its "embed" or "head", in the layout of the other."""
        if self.is_gguf:
            return {"embed": "token_embd.weight", "head": "output.weight"}[role]
        other = self.head if role == "embed" else self.embed
        assert other is not None
        other = f"{layer_of(other)}.weight"
        name = None
        if self.architecture is not None and role == "head":
            name = head_name(self.architecture, other)
        elif self.architecture is not None:
            name = embed_name(self.architecture, other, self.stored_names)
        if name is None:
            model_type = self.checkpoint.architecture or "this architecture"
            raise BadRequest(f'the name of the {role} in {model_type} is not known; name it with {role}="NAME"')
        return name

    def tie_flags(self) -> dict[tuple[str, ...], Any]:
        """Every path in the config where some loader reads the tie flag, with its current value."""
        if self.layout.config is None:
            return {}
        legacy = self.architecture.legacy_flag if self.architecture else None
        everywhere: dict[tuple[str, ...], Any] = {(*path, FLAG): None for path, _ in config_levels(self.layout.config)}
        return everywhere | flag_levels(self.layout.config, legacy)


def open_source(
    source: str | os.PathLike[str] | Checkpoint,
    *,
    embed: str | None = None,
    head: str | None = None,
    target: str | os.PathLike[str] | None = None,
    dtype: str = "F32",
) -> Source:
    """Open `source` for surgery. A GGUF stays GGUF if `target` is named *.gguf, else it is converted to `dtype`."""
    if not isinstance(source, str | os.PathLike | Checkpoint):
        raise BadRequest(
            f"source must be a path, a model id or an open Checkpoint, not {type(source).__name__}; for a torch model "
            "in memory use tiebeam.tie_(model) or tiebeam.untie_(model)"
        )
    if dtype not in ("F32", "F16", "BF16"):
        raise BadRequest(f'dtype must be "F32", "F16" or "BF16", not {dtype!r}')
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    local_files(checkpoint)
    given = {"embed": embed, "head": head}
    stored = {role: name for role, name in given.items() if name in checkpoint.tensors}
    report = inspect(checkpoint, embed=stored.get("embed"), head=stored.get("head"))
    pair = {"embed": report.pair.embed, "head": report.pair.head}
    names = {role: matrix.name if matrix else None for role, matrix in pair.items()}
    stays_gguf = target is not None and os.fspath(check_path(target)).endswith(".gguf")
    if checkpoint.format != "gguf":
        if stays_gguf:
            raise BadRequest(f"cannot write a {checkpoint.format} model as GGUF; use llama.cpp's convert_hf_to_gguf.py")
        layout = layout_of(checkpoint)
    elif stays_gguf:
        layout = gguf_layout(checkpoint)
    else:
        from tiebeam.surgery.gguf_to_hf import convert

        layout, renamed = convert(checkpoint, dtype)
        names = {role: renamed[name] if name else None for role, name in names.items()}
    new_names = {role: name for role, name in given.items() if name and name not in checkpoint.tensors}
    return Source(checkpoint, report, layout, names["embed"], names["head"], new_names, any(given.values()))


def check_path(target: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Refuse a target that is not a path with a sentence instead of a TypeError."""
    if not isinstance(target, str | os.PathLike):
        raise BadRequest(f"target must be a path, not {type(target).__name__}")
    return target
