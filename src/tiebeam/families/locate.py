"""Find embedding and LM head among tensor names and shapes: by the table for a known architecture, else by guess.

A guess is marked as one, with its reason. Where two tensors could equally well be the embedding (or the head), none
is taken and both are named, so that a person can choose. Shapes only rule candidates out: two matrices of the same
shape are not tied because of it, and a large matrix with an unknown name is not a vocabulary matrix because of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tiebeam.errors import BadRequest
from tiebeam.families.head_classes import class_has_head, head_by_design
from tiebeam.families.heuristics import Guess, guess_pair
from tiebeam.families.registry import Architecture, families, lookup, vocabulary, width
from tiebeam.families.tensor_names import is_active, is_packed, with_leaf, wrapper_before

Shapes = Mapping[str, tuple[int, ...]]


class Found(NamedTuple):
    """The stored names of embedding and head; None for one that is not stored or cannot be determined."""

    embed: str | None
    head: str | None
    guessed: bool
    why: str
    prefix: str = ""
    """What wrappers put in front of the model's own names."""
    has_head_by_design: bool | None = None
    """Whether this class of model has a head at all, stored or tied; None when unknown."""
    packed: tuple[str, ...] = ()
    """Which of "embed" and "head" a quantiser packed: their shape is not the matrix's."""
    candidates: tuple[str, ...] = ()
    """Names that could be embedding or head but were not taken; while there are any, a missing one proves nothing."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "embed": self.embed,
            "head": self.head,
            "guessed": self.guessed,
            "why": self.why,
            "prefix": self.prefix,
            "has_head_by_design": self.has_head_by_design,
            "packed": list(self.packed),
            "candidates": list(self.candidates),
        }


def find_pair(
    shapes: Shapes, config: Mapping[str, Any] | None = None, architecture: Architecture | None = None
) -> Found:
    """Embedding and head among `shapes`, a mapping from tensor names to shapes."""
    found = _in_gguf(shapes) or (_by_table(shapes, config, architecture) if architecture else None)
    if found is None and architecture is None:
        found = _in_own_format(shapes, config or {})
    if found is None:
        guess = guess_pair(shapes, vocabulary(config, architecture), width(config, architecture))
        reason = _why_guessing(config, architecture)
        if guess.head and class_has_head(config or {}) is False:
            # A CTC or classification head scores labels, whatever its name.
            reason = f"{guess.head} is not a language-model head in this class; {reason}"
            guess = Guess(guess.embed, None, guess.why if guess.embed else "not guessed", guess.candidates)
        found = _from_guess(guess, reason)
    return _complete(found, shapes, config, architecture)


def _in_own_format(shapes: Shapes, config: Mapping[str, Any]) -> Found | None:
    """By the family's tensor names: what `tiebeam train` writes has a family's file and no entry in the table."""
    model_type = config.get("model_type")
    family = families().get(model_type) if isinstance(model_type, str) else None
    if family is None or family.names is None or lookup(model_type) is not None:
        return None
    embed, head = family.names.prefix + family.names.embed, family.names.head
    if embed not in shapes:
        return None
    return Found(embed, head if head in shapes else None, False, f"{model_type} names it so", has_head_by_design=True)


def named_pair(shapes: Shapes, embed: str | None, head: str | None) -> Found:
    """Embedding and head as the user named them. A name may leave out `.weight`."""
    if embed is None and head is None:
        raise BadRequest('name at least one matrix: embed="NAME" or head="NAME"')
    embed = None if embed is None else _named(shapes, embed, "embed")
    head = None if head is None else _named(shapes, head, "head")
    if embed is not None and embed == head:
        raise BadRequest(f"embed and head both name {embed!r}; leave out head when there is no separate head")
    packed = tuple(role for role, name in (("embed", embed), ("head", head)) if name and is_packed(name, shapes))
    if embed is not None and head is not None and not packed:
        rows, dim = shapes[embed]
        if shapes[head] == (dim, rows) and rows != dim:
            raise BadRequest(
                f"{head!r} is {list(shapes[head])}, transposed against {embed!r}; store it as [{rows}, {dim}]"
            )
        if shapes[head][1] != dim:
            raise BadRequest(
                f"{embed!r} is {list(shapes[embed])} but {head!r} is {list(shapes[head])}; "
                "embedding and head must have the same width"
            )
    return Found(
        embed, head, guessed=False, why="named by you", packed=packed, has_head_by_design=True if head else None
    )


def _named(shapes: Shapes, name: str, argument: str) -> str:
    stored = next((known for known in (name, f"{name}.weight") if known in shapes), None)
    if stored is None:
        import difflib

        near = difflib.get_close_matches(name, list(shapes), n=3, cutoff=0.5)
        near += [known for known in shapes if name in known and known not in near][: 3 - len(near)]
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else _some(shapes)
        raise BadRequest(f'{argument}="{name}" is not in this checkpoint; {hint}')
    if len(shapes[stored]) != 2 and not is_packed(stored, shapes):
        raise BadRequest(f'{argument}="{stored}" is {list(shapes[stored])}; a vocabulary matrix is [vocabulary, width]')
    return stored


def _some(shapes: Shapes) -> str:
    flat = [name for name, shape in shapes.items() if len(shape) == 2]
    return f"its matrices are {', '.join(flat[:5])}{' …' if len(flat) > 5 else ''}" if flat else "it holds no matrices"


def _in_gguf(shapes: Shapes) -> Found | None:
    """GGUF has the same two names for every architecture."""
    embed, head = "token_embd.weight", "output.weight"
    if embed not in shapes and not (head in shapes and "output_norm.weight" in shapes):
        return None
    return Found(
        embed if embed in shapes else None,
        head if head in shapes else None,
        guessed=False,
        why="named as GGUF names them",
    )


def _by_table(shapes: Shapes, config: Mapping[str, Any] | None, architecture: Architecture) -> Found | None:
    embed = _match(shapes, architecture.embed)
    head = _match(shapes, architecture.head, embed[1] if embed else None)
    if embed is None and head is None:
        return None
    prefix = (embed or head or ("", ""))[1]
    why = f"named as {architecture.model_type} names them"
    if prefix:
        why += f", behind {prefix}"
    names = embed[0] if embed else None, head[0] if head else None
    if None in names and architecture.head:
        # A matrix under a name of another architecture would otherwise count as missing.
        guess = guess_pair(shapes, vocabulary(config, architecture), width(config, architecture), *names)
        if (guess.embed, guess.head) != names:
            return _from_guess(guess, f"only one matrix is named as {architecture.model_type} names it")
        return Found(*names, guessed=False, why=why, prefix=prefix, candidates=guess.candidates)
    return Found(*names, guessed=False, why=why, prefix=prefix)


def _match(shapes: Shapes, wanted: Iterable[str], lead: str | None = None) -> tuple[str, str] | None:
    """The stored name of the first of `wanted`, and its wrapper prefix; `lead` is preferred."""
    wanted = tuple(wanted)
    for name in wanted:
        if name in shapes and not lead:
            return name, ""
    leaves = {name.removesuffix(".weight").rpartition(".")[2] for name in wanted}
    hits = []
    for stored, path in with_leaf(shapes, leaves):
        for rank, name in enumerate(wanted):
            before = wrapper_before(path, name)
            if before is not None:
                hits.append((before != (lead or ""), not is_active(stored), before.count("."), rank, stored, before))
    if not hits:
        return None
    *_, stored, before = min(hits)
    return stored, before


def _from_guess(guess: Guess, reason: str) -> Found:
    return Found(guess.embed, guess.head, guessed=True, why=f"{guess.why}; {reason}", candidates=guess.candidates)


def _why_guessing(config: Mapping[str, Any] | None, architecture: Architecture | None) -> str:
    if architecture is not None:
        return f"no tensor is named as {architecture.model_type} names them"
    if config is None:
        return "there is no config.json to name the architecture"
    named = config.get("model_type")
    return f"the architecture {named!r} is not in the table" if named else "config.json has no model_type"


def _complete(
    found: Found, shapes: Shapes, config: Mapping[str, Any] | None, architecture: Architecture | None
) -> Found:
    pair = {"embed": found.embed, "head": found.head}
    packed = tuple(role for role, name in pair.items() if name and is_packed(name, shapes))
    why = found.why
    if packed:
        why += f"; {' and '.join(str(pair[role]) for role in packed)} packed by a quantiser"
    by_design = True if found.head else head_by_design(shapes, config, architecture)
    return Found(
        found.embed, found.head, found.guessed, why, found.prefix, by_design, packed=packed, candidates=found.candidates
    )
