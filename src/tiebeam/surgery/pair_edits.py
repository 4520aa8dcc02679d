"""The edits that tie, untie and the doctor's fixes are made of. Each returns an `Edit`; combine them with |.

A packed matrix is several tensors, and every edit moves or drops all of them. Every edit that declares a model untied
also stores the followers: tensors that a loader ties only while the flag is true (families/disk_names.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiebeam.equality import same_bytes
from tiebeam.errors import BadRequest
from tiebeam.families.disk_names import followers
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.packed_parts import layer_of, moved, packed_by, parts_of
from tiebeam.surgery.source import Source


def set_flag(source: Source, value: bool) -> Edit:
    """Set tie_word_embeddings at every config level that a loader reads and that does not have this value yet.

    Nothing for a type that ignores the flag, or reads it as another setting (T5: whether decoder outputs are scaled).
    """
    if source.flag_is_fixed:
        return Edit()
    return Edit(config={path: value for path, now in source.tie_flags().items() if now is not value})


def drop_matrix(source: Source, name: str) -> Edit:
    """Drop a stored matrix with all its parts."""
    return Edit(drop=frozenset(parts_of(name, source.dtypes)))


def drop_head(source: Source) -> Edit:
    """Drop a head that repeats the embedding."""
    assert source.head is not None
    return drop_matrix(source, source.head)


def write_head(source: Source) -> Edit:
    """Store the head as a copy of the embedding; without it a loader would initialise the head at random."""
    assert source.embed is not None
    return _copied(source, source.embed, source.tensor_name("head"))


def write_embed(source: Source) -> Edit:
    """Store the embedding as a copy of the head."""
    assert source.head is not None
    return _copied(source, source.head, source.tensor_name("embed"))


def _copied(source: Source, stored: str, new: str) -> Edit:
    parts = moved(stored, new, source.dtypes)
    return Edit(copy={name: part for part, name in parts.items()}, config=_layer_settings(source, stored, new))


def rename_head(source: Source) -> Edit:
    """Rename the only stored matrix to the embedding's name."""
    assert source.head is not None
    new = source.tensor_name("embed")
    return Edit(rename=moved(source.head, new, source.dtypes), config=_layer_settings(source, source.head, new))


def _layer_settings(source: Source, stored: str, new: str) -> Mapping[tuple[str, ...], Any]:
    """MLX configs may name the bits of a single layer: the copy needs the same."""
    if packed_by(stored, source.dtypes) is None:
        return {}
    settings: dict[tuple[str, ...], Any] = {}
    for key in ("quantization", "quantization_config"):
        levels = (source.layout.config or {}).get(key)
        if isinstance(levels, Mapping) and layer_of(stored) in levels:
            settings[key, layer_of(new)] = levels[layer_of(stored)]
    return settings


def drop_aliases(source: Source) -> Edit:
    """Drop the pair's aliases that `safetensors.torch.save_model` wrote into the metadata: loaders read the config."""
    pair = {source.embed, source.head}
    return Edit(drop_metadata=frozenset(alias for alias, kept in source.checkpoint.aliases.items() if kept in pair))


def write_followers(source: Source) -> Edit:
    """Store the other tensors that a loader ties only while the flag is true."""
    copies = {}
    for name, original in _followers(source).items():
        if name not in source.stored_names:
            copies[name] = original if original in source.stored_names else source.head or original
    return Edit(copy=copies)


def drop_followers(source: Source) -> Edit:
    """The inverse of `write_followers`; refuses if a copy differs from the tensor it will be tied to."""
    copies = {name: original for name, original in _followers(source).items() if name in source.stored_names}
    for name, original in copies.items():
        if original in source.stored_names and not same_bytes(source.checkpoint, original, name):
            raise BadRequest(f"{name} would be tied to {original}, but the two differ; make them equal first")
    return Edit(drop=frozenset(name for name, original in copies.items() if original in source.stored_names))


def _followers(source: Source) -> dict[str, str]:
    """follower: original, beside the pair. An embedding that is still to be written counts as stored."""
    if source.is_gguf or source.architecture is None:
        return {}
    embed = source.embed
    if embed is None and source.head is not None and "embed" not in source.new_names:
        embed = embed_or_none(source)
    return followers(source.architecture, embed, source.stored_names | ({embed} if embed else set()))


def embed_or_none(source: Source) -> str | None:
    try:
        return source.tensor_name("embed")
    except BadRequest:
        return None
