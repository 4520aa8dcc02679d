"""The single repairs: each returns an `Edit` and touches nothing. Join them with |."""

from __future__ import annotations

from tiebeam.equality import same_bytes
from tiebeam.errors import BadRequest
from tiebeam.surgery.cases import Case
from tiebeam.surgery.edits import Edit


def set_flag(case: Case, value: bool) -> Edit:
    """tie_word_embeddings at every level of the config that a loader reads, where it does not say so yet."""
    return Edit(config={path: value for path, now in case.flags().items() if now is not value})


def drop_head(case: Case) -> Edit:
    """Leave out a head that repeats the embedding."""
    assert case.head is not None
    return Edit(drop=frozenset({case.head}))


def write_head(case: Case) -> Edit:
    """Store the head that a loader would otherwise start at random: the embedding's numbers."""
    assert case.embed is not None
    return Edit(copy={case.name_of("head"): case.embed})


def rename_head(case: Case) -> Edit:
    """Give the one stored matrix the embedding's name."""
    assert case.head is not None
    return Edit(rename={case.head: case.name_of("embed")})


def drop_aliases(case: Case) -> Edit:
    """Forget what `safetensors.torch.save_model` noted about the pair: the config says it, and loaders read that."""
    ends = {case.embed, case.head}
    return Edit(forget=frozenset(alias for alias, kept in case.checkpoint.aliases.items() if kept in ends))


def write_followers(case: Case) -> Edit:
    """What a loader ties only while the flag is true must be stored when it is false: an encoder's and a decoder's
    own view of a shared table, a bias that lives under two names."""
    return Edit(copy=_followers(case, stored=False))


def drop_followers(case: Case) -> Edit:
    """The way back: what the flag will tie again is not stored twice. Each must be equal to what it follows."""
    followers = _followers(case, stored=True)
    for name, leader in followers.items():
        if not same_bytes(case.checkpoint, leader, name):
            raise BadRequest(f"{name} would be tied to {leader}, but the two differ; tying them would change the model")
    return Edit(drop=frozenset(followers))


def _followers(case: Case, stored: bool) -> dict[str, str]:
    """follower: leader, for the ties beside the pair whose follower is (or is not) stored."""
    if case.is_gguf:
        return {}
    ties: dict[str, str] = {}
    embed = case.embed or case.name_of("embed")
    if embed == "shared.weight" or embed.endswith(".shared.weight"):
        prefix = embed.removesuffix("shared.weight")
        ties |= {f"{prefix}{part}.embed_tokens.weight": embed for part in ("encoder", "decoder")}
    head = case.head or case.name_of("head")
    if head.endswith(".decoder.weight"):  # bert's way: the bias belongs to the head and to its decoder
        inner, outer = f"{head.removesuffix('weight')}bias", f"{head.removesuffix('decoder.weight')}bias"
        ties |= {outer: inner} if inner in case.stored and outer not in case.stored else {inner: outer}
    return {
        follower: leader
        for follower, leader in ties.items()
        if leader in case.stored and (follower in case.stored) is stored
    }
