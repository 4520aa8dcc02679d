"""From the state of a pair to the edit that ties or unties it; and the single repairs that the doctor prescribes.

Every function here returns an `Edit` or a `Plan` and touches nothing. Exact ones keep every logit; where a
choice would change the model, none is made silently.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tiebeam import anatomy
from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.checkpoint.copying import BLOCK
from tiebeam.errors import BadRequest
from tiebeam.inspection import Report, inspect
from tiebeam.pair import Tie
from tiebeam.surgery.carrying_out import Plan
from tiebeam.surgery.edits import Edit, flag_levels

FLAG = "tie_word_embeddings"


def plan_untie(
    source: str | os.PathLike[str] | Checkpoint, *, embed: str | None = None, head: str | None = None
) -> Plan:
    """The head becomes its own tensor, the same numbers, and every config level says so. Exact."""
    checkpoint, report = opened(source, embed, head)
    refuse_fixed(checkpoint, tied=False)
    pair, tie = report.pair, report.tie
    flags = set_flag(checkpoint, False)
    notes = [_FOLDING]
    if tie is Tie.NONE:
        raise BadRequest(f"{report.model} has no vocabulary pair to untie ({pair.declared_by or 'an encoder'})")
    if tie is Tie.SHARED and pair.one_storage:
        edit = flags  # a format with aliases: writing both names makes two tensors
    elif tie in (Tie.SHARED, Tie.HEADLESS):
        edit = write_head(checkpoint, report, head) | write_followers(checkpoint, report) | flags
    elif tie is Tie.SWAPPED:
        assert pair.head
        edit = Edit(copy={embed or embed_name(checkpoint, report): pair.head.name}) | flags
    elif tie is Tie.TORN:
        edit = flags
        notes.append("both matrices were stored and differ; both are kept, and the flag now says so")
    else:
        if not flags and checkpoint.format == "safetensors":
            raise BadRequest(f"{report.model} is untied already: two tensors are stored and the config says so")
        edit = flags
    return Plan("untie", checkpoint, report, edit, is_untied(checkpoint), tie is not Tie.HEADLESS, tuple(notes))


def plan_tie(source: str | os.PathLike[str] | Checkpoint, *, embed: str | None = None, head: str | None = None) -> Plan:
    """One matrix for both ends, where that loses nothing; refuses where it would, naming the choices. Exact."""
    checkpoint, report = opened(source, embed, head)
    refuse_fixed(checkpoint, tied=True)
    pair, tie = report.pair, report.tie
    flags = set_flag(checkpoint, True)
    if tie is Tie.NONE:
        raise BadRequest(f"{report.model} has no vocabulary pair to tie")
    if tie in (Tie.UNTIED, Tie.TORN):
        raise BadRequest(
            f"the two matrices of {report.model} are different ({report.how}); tying them changes the model, so "
            "choose how: --joint --text FILES (one table, two small maps), or --keep embed|head|mean (usually ruinous)"
        )
    if tie is Tie.SWAPPED:
        edit = rename_head(checkpoint, report, embed) | flags
    elif pair.head is not None:
        _refuse_inexact_twin(report)
        edit = drop_head(report) | drop_followers(checkpoint, report) | flags
    else:
        edit = flags
        if not edit and checkpoint.format == "safetensors":
            raise BadRequest(f"{report.model} is tied already: one matrix is stored and the config says so")
    edit = edit | drop_aliases(checkpoint, report)
    return Plan("tie", checkpoint, report, edit, is_tied(checkpoint), tie is not Tie.HEADLESS)


def set_flag(checkpoint: Checkpoint, value: bool) -> Edit:
    """tie_word_embeddings at every level of the config that a loader reads, where it does not say so yet."""
    config = checkpoint.config
    if config is None:
        return Edit()
    architecture = anatomy.lookup(checkpoint.architecture)
    changes: dict[tuple[str, ...], Any] = {}
    for level in flag_levels(config):
        inner: Any = config
        for key in level:
            inner = inner[key]
        legacy = architecture.legacy_flag if architecture and architecture.legacy_flag in inner else FLAG
        for key in {FLAG, legacy}:
            if inner.get(key) is not value:
                changes[(*level, key)] = value
    return Edit(config=changes)


def drop_head(report: Report) -> Edit:
    """Leave out a head that repeats the embedding."""
    assert report.pair.head
    return Edit(drop=frozenset({report.pair.head.name}))


def write_head(checkpoint: Checkpoint, report: Report, name: str | None = None) -> Edit:
    """Store the head that a loader would otherwise start at random: the embedding's numbers."""
    assert report.pair.embed
    return Edit(copy={name or head_name(checkpoint, report): report.pair.embed.name})


def rename_head(checkpoint: Checkpoint, report: Report, name: str | None = None) -> Edit:
    """Give the one stored matrix the embedding's name."""
    assert report.pair.head
    return Edit(rename={report.pair.head.name: name or embed_name(checkpoint, report)}) | drop_aliases(
        checkpoint, report
    )


def drop_aliases(checkpoint: Checkpoint, report: Report) -> Edit:
    """Forget the notes of `safetensors.torch.save_model` about the pair: the config says it, and all loaders read that."""
    ends = {matrix.name for matrix in (report.pair.embed, report.pair.head) if matrix}
    return Edit(forget=frozenset(alias for alias, kept in checkpoint.aliases.items() if kept in ends))


def write_followers(checkpoint: Checkpoint, report: Report) -> Edit:
    """What a loader ties only while the flag is true must be stored when it is false: an encoder's and a decoder's
    own view of a shared table, a bias that lives under two names."""
    return Edit(copy=_followers(checkpoint, report, stored=False))


def drop_followers(checkpoint: Checkpoint, report: Report) -> Edit:
    """The way back: what the flag will tie again is not stored twice. Each must be equal to what it follows."""
    followers = _followers(checkpoint, report, stored=True)
    for name, leader in followers.items():
        if not _same_bytes(checkpoint, leader, name):
            raise BadRequest(f"{name} would be tied to {leader}, but the two differ; tying them would change the model")
    return Edit(drop=frozenset(followers))


def _followers(checkpoint: Checkpoint, report: Report, stored: bool) -> dict[str, str]:
    """follower: leader, for the ties beside the pair whose follower is (or is not) stored."""
    tensors, pair = checkpoint.tensors, report.pair
    ties: dict[str, str] = {}
    if pair.embed and (pair.embed.name == "shared.weight" or pair.embed.name.endswith(".shared.weight")):
        prefix = pair.embed.name.removesuffix("shared.weight")
        ties |= {f"{prefix}{part}.embed_tokens.weight": pair.embed.name for part in ("encoder", "decoder")}
    head = pair.head.name if pair.head else head_name(checkpoint, report)
    if head.endswith(".decoder.weight"):  # bert's way: the bias belongs to the head and to its decoder
        inner, outer = f"{head.removesuffix('weight')}bias", f"{head.removesuffix('decoder.weight')}bias"
        ties |= {outer: inner} if inner in tensors and outer not in tensors else {inner: outer}
    return {
        follower: leader for follower, leader in ties.items() if leader in tensors and (follower in tensors) is stored
    }


def _same_bytes(checkpoint: Checkpoint, left: str, right: str) -> bool:
    a, b = checkpoint.tensors[left], checkpoint.tensors[right]
    if (a.dtype, a.shape, a.strides, a.nbytes) != (b.dtype, b.shape, b.strides, b.nbytes):
        return False
    return all(
        checkpoint.read_bytes(left, at, at + BLOCK) == checkpoint.read_bytes(right, at, at + BLOCK)
        for at in range(0, a.nbytes, BLOCK)
    )


def head_name(checkpoint: Checkpoint, report: Report) -> str:
    """What this architecture's files call the head, next to the embedding they have."""
    assert report.pair.embed
    return _partner(checkpoint, report.pair.embed.name, "head")


def embed_name(checkpoint: Checkpoint, report: Report) -> str:
    assert report.pair.head
    return _partner(checkpoint, report.pair.head.name, "embed")


def _partner(checkpoint: Checkpoint, name: str, end: str) -> str:
    """The name of the other end: of those known, the one that shares the longest prefix with `name`."""
    architecture = anatomy.lookup(checkpoint.architecture)
    known = list(getattr(architecture, end)) if architecture else []
    if not known:
        raise BadRequest(
            f"where {checkpoint.architecture or 'this model'} keeps its {end} is not known; name it with --{end} NAME"
        )
    if checkpoint.architecture == "gpt_neox" and end == "head":
        return "embed_out.weight"  # its name on disk in every version; lm_head is its name in memory
    return max(known, key=lambda candidate: (_common(candidate, name), -known.index(candidate)))


def _common(left: str, right: str) -> int:
    """How many leading dotted parts two names share."""
    return len(os.path.commonprefix([left.split("."), right.split(".")]))


def opened(
    source: str | os.PathLike[str] | Checkpoint, embed: str | None, head: str | None
) -> tuple[Checkpoint, Report]:
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    stored = checkpoint.tensors
    report = inspect(
        checkpoint,
        embed=embed if embed in stored else None,
        head=head if head in stored else None,
    )
    return checkpoint, report


def refuse_fixed(checkpoint: Checkpoint, tied: bool) -> None:
    """Some architectures are tied, or untied, by their code; a file cannot change that."""
    architecture = anatomy.lookup(checkpoint.architecture)
    if architecture is None:
        return
    if not tied and architecture.flag == "forced":
        raise BadRequest(
            f"transformers ties {architecture.model_type} whatever its config says, so it cannot be untied in a file; "
            "in memory it can: tiebeam.untie_(model)"
        )
    if tied and not architecture.decides:
        raise BadRequest(
            f"transformers never ties {architecture.model_type}, so a file without a head would get a random one"
        )


def _refuse_inexact_twin(report: Report) -> None:
    pair = report.pair
    assert pair.embed and pair.head
    if pair.embed.dtype != pair.head.dtype or pair.embed.shape != pair.head.shape:
        raise BadRequest(
            f"the two matrices of {report.model} are equal only up to rounding ({report.how}); say which one stays: "
            "--keep embed or --keep head"
        )


def is_untied(checkpoint: Checkpoint) -> Callable[[Report], str | None]:
    def expect(report: Report) -> str | None:
        if report.pair.head is None or report.pair.embed is None:
            return "it does not hold both matrices"
        if report.pair.declared is not False and checkpoint.config is not None:
            return f"{report.pair.declared_by or 'its config'} does not say untied"
        return None

    return expect


def is_tied(checkpoint: Checkpoint) -> Callable[[Report], str | None]:
    def expect(report: Report) -> str | None:
        if report.tie is not Tie.SHARED:
            return f"its pair is {report.tie}, not shared"
        if report.pair.declared is not True and checkpoint.config is not None:
            return f"{report.pair.declared_by or 'its config'} does not say tied"
        return None

    return expect


_FOLDING = (
    "untied: the final norm can now be folded into the head (as GPTQ- and rotation-based quantisers do); folding it into "
    "a tied matrix would corrupt the lookup"
)
