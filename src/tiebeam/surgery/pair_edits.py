"""The edits that tie, untie and the doctor's fixes are made of. Each returns an `Edit`; combine them with |."""

from __future__ import annotations

from tiebeam.equality import same_bytes
from tiebeam.errors import BadRequest
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.source import Source


def set_flag(source: Source, value: bool) -> Edit:
    """Set tie_word_embeddings at every config level that a loader reads and that does not have this value yet."""
    return Edit(config={path: value for path, now in source.tie_flags().items() if now is not value})


def drop_head(source: Source) -> Edit:
    """Drop a head that repeats the embedding."""
    assert source.head is not None
    return Edit(drop=frozenset({source.head}))


def write_head(source: Source) -> Edit:
    """Store the head as a copy of the embedding; without it a loader would initialise the head at random."""
    assert source.embed is not None
    return Edit(copy={source.tensor_name("head"): source.embed})


def rename_head(source: Source) -> Edit:
    """Rename the only stored matrix to the embedding's name."""
    assert source.head is not None
    return Edit(rename={source.head: source.tensor_name("embed")})


def drop_aliases(source: Source) -> Edit:
    """Drop the pair's aliases that `safetensors.torch.save_model` wrote into the metadata: loaders read the config."""
    pair = {source.embed, source.head}
    return Edit(drop_metadata=frozenset(alias for alias, kept in source.checkpoint.aliases.items() if kept in pair))


def write_tied_copies(source: Source) -> Edit:
    """Store the other tensors that a loader ties only while the flag is true.

    Examples: the embed_tokens of BART's encoder and decoder, and the second name of BERT's head bias.
    """
    return Edit(copy=_tied_copies(source, stored=False))


def drop_tied_copies(source: Source) -> Edit:
    """The inverse of `write_tied_copies`; refuses if a copy differs from the tensor it will be tied to."""
    copies = _tied_copies(source, stored=True)
    for name, original in copies.items():
        if not same_bytes(source.checkpoint, original, name):
            raise BadRequest(f"{name} would be tied to {original}, but the two differ; make them equal first")
    return Edit(drop=frozenset(copies))


def _tied_copies(source: Source, stored: bool) -> dict[str, str]:
    """copy: original, for the tied tensors beside the pair whose copy is (or is not) stored."""
    if source.is_gguf:
        return {}
    ties: dict[str, str] = {}
    embed = source.embed or source.tensor_name("embed")
    if embed == "shared.weight" or embed.endswith(".shared.weight"):
        prefix = embed.removesuffix("shared.weight")
        ties |= {f"{prefix}{part}.embed_tokens.weight": embed for part in ("encoder", "decoder")}
    head = source.head or source.tensor_name("head")
    names = source.stored_names
    if head.endswith(".decoder.weight"):  # BERT: the bias belongs to the head and to its decoder
        inner, outer = f"{head.removesuffix('weight')}bias", f"{head.removesuffix('decoder.weight')}bias"
        ties |= {outer: inner} if inner in names and outer not in names else {inner: outer}
    return {copy: original for copy, original in ties.items() if original in names and (copy in names) is stored}
