"""The names under which a checkpoint stores, or would store, its embedding, its LM head and what is tied with them.

An architecture can be stored in several layouts: as transformers 5 saves it, under the names of transformers 4, without
the base class's prefix (`wte` for `transformer.wte`), or behind a wrapper (`module.`). A name that has to be written
follows the layout of the names that are stored.

Followers are tensors that transformers ties only while the flag is true: BART's encoder and decoder tables, the second
name of BERT's head bias. An untied checkpoint must store them, or transformers initialises them at random.
"""

from __future__ import annotations

from collections.abc import Collection

from tiebeam.families.registry import Architecture
from tiebeam.families.tensor_names import plain, wrapper_before


def head_name(architecture: Architecture, embed: str) -> str | None:
    """The name of the head beside an embedding stored as `embed`; None when it is not known.

    >>> from tiebeam.families import lookup
    >>> head_name(lookup("llava"), "language_model.model.embed_tokens.weight")
    'language_model.lm_head.weight'
    >>> head_name(lookup("gpt2"), "module.transformer.wte.weight")
    'module.lm_head.weight'
    """
    found = _known(architecture.embed, embed)
    if found is not None:
        lead, known = found
        head = architecture.beside.get(known, architecture.head[0]) if architecture.head else None
        return f"{lead}{head}" if head else None
    others = {*architecture.head[:1], *architecture.beside.values()}
    return architecture.head[0] if len(others) == 1 else None


def embed_name(architecture: Architecture, head: str, stored: Collection[str]) -> str | None:
    """The name of the embedding beside a head stored as `head`, among the tensors `stored`; None when it is not known.

    Several layouts can have one name for the head. The embedding then belongs to the module whose layers are stored. It
    is not known for one half of an encoder-decoder.
    """
    found = _known(architecture.head, head)
    if found is None:
        return None
    lead, known = found
    fits = [name for name in architecture.embed if architecture.beside.get(name, architecture.head[0]) == known]
    fits = fits or list(architecture.embed)
    shared = [f"{lead}{copy}" for copy, source in architecture.followers.items() if source == fits[0]]
    if any(not _has_siblings(copy, stored) for copy in shared):
        return None  # a decoder saved alone: its table is not the one of the whole model
    siblings = [name for name in fits if _has_siblings(f"{lead}{name}", stored) and name not in architecture.followers]
    if fits[0] in siblings:  # the same name further inside: `model.` also precedes `model.language_model.`
        siblings = [name for name in siblings if name.split(".")[-2] == fits[0].split(".")[-2]]
    return f"{lead}{max(siblings, key=lambda name: name.count('.'), default=fits[0])}"


def followers(architecture: Architecture, embed: str | None, stored: Collection[str]) -> dict[str, str]:
    """follower: the tensor that it repeats while the flag is true, named in the layout of `embed`.

    Only followers whose module is part of the checkpoint: a decoder saved alone has no encoder table.

    >>> from tiebeam.families import lookup
    >>> followers(lookup("bert"), "bert.embeddings.word_embeddings.weight", ["cls.predictions.bias"])
    {'cls.predictions.decoder.bias': 'cls.predictions.bias'}
    """
    found = _known(architecture.embed, embed) if embed else None
    lead, known = found or ("", architecture.embed[0])
    base = ""
    if known != architecture.embed[0] and architecture.embed[0].endswith(f".{known}"):
        base = architecture.embed[0].removesuffix(known)
    ties: dict[str, str] = {}
    for follower, original in architecture.followers.items():
        copy, source = (f"{lead}{name.removeprefix(base)}" for name in (follower, original))
        if copy in stored and source not in stored and copy.endswith(".bias"):
            copy, source = source, copy  # either name of a bias may be the stored one
        if source in stored and (copy in stored or _has_siblings(copy, stored)):
            ties[copy] = source
    return ties


def _known(names: Collection[str], stored: str) -> tuple[str, str] | None:
    """(wrapper prefix, known name) of a stored name; the longest known name is taken."""
    for form in (stored, plain(stored)):
        hits = [(lead, name) for name in names if (lead := wrapper_before(form, name)) is not None]
        if hits:
            return min(hits, key=lambda hit: len(hit[0]))
    return None


def _has_siblings(name: str, stored: Collection[str]) -> bool:
    """Whether the module around this tensor's module has other tensors."""
    parent = name.rpartition(".")[0].rpartition(".")[0]
    return not parent or any(other.startswith(f"{parent}.") for other in stored if other != name)
