"""Guess embedding and LM head by name and shape, for checkpoints that the table does not cover.

A name is strong when it means little else (`embed_tokens`, `lm_head`), weak when it often means something else
(`emb`, `output`). A strong name suffices; a weak one needs the other matrix in the same shape. Position, type,
per-layer and vision embeddings, routers and classifiers are never candidates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from tiebeam.families.tensor_names import WRAPPERS, is_active, is_packed, plain, with_leaf

PADDING = 1024
"""Rows that a matrix may have beyond the vocabulary: padding or added tokens."""

_STRONG_EMBED = frozenset(
    {
        *("embed_tokens", "wte", "tok_embeddings", "token_embedding", "token_embeddings", "word_embeddings"),
        *("word_embedding", "tokens_embed", "embed_in", "shared", "input_embedding", "token_embd", "tok_emb"),
        *("token_emb", "word_emb", "wordembedding", "token_embedding_table", "embed_token", "tok_embed", "W_E"),
    }
)
# "encoder" and "decoder" are embedding and head in PyTorch's word_language_model example.
_WEAK_EMBED = frozenset({"emb", "embed", "embedding", "embeddings", "encoder"})
_STRONG_HEAD = frozenset(
    {
        *("lm_head", "embed_out", "output_projection", "proj_out", "unembed", "to_logits", "output_layer", "lm_loss"),
        *("vocab_projector", "generator_lm_head", "vocab_proj", "out_head", "output_embedding", "W_U"),
        *("predictions.decoder", "lm_head.decoder", "lm_head.linear", "lm_head.out_proj", "pred_layer.proj"),
        *("transformer.ff_out", "generator.proj", "output_embeddings"),
    }
)
_WEAK_HEAD = frozenset({"output", "head", "decoder", "out", "fc_out", "fc", "logits"})
_INNER = ("emb", "embedding", "embeddings", "word_embeddings")
_OUTER = ("transformer", "decoder", "backbone", "embeddings", "cls", "predictions", "lm_head")
_LEAVES = frozenset(
    name.rpartition(".")[2] for names in (_STRONG_EMBED, _WEAK_EMBED, _STRONG_HEAD, _WEAK_HEAD) for name in names
)
_NEVER = (
    r"(?:^|[._])(?:pos|position|positions|positional|wpe|token_type|type|segment|per_layer|patch|vision"
    r"|visual(?!_bert)|vit|image|img|pixel|audio|video|rotary|rope|time|timestep|relative|rel|class|cls_token|query|queries|router|gate"
    r"|score|scores|classifier|v_head|value_head|reward|lora|mtp|adapter|entity|lang|speaker|action|prompt|exp_avg"
    r"|optimizer|teacher|patcher|qformer|codebook|mm)(?:$|[._])"
    r"|(?:^|\.)(?:layers?|h|blk|blocks?|stages?)\.\d+\."
)


@cache
def _never() -> re.Pattern[str]:
    return re.compile(_NEVER)


class Guess(NamedTuple):
    embed: str | None
    head: str | None
    why: str
    candidates: tuple[str, ...] = ()


class _Candidate(NamedTuple):
    name: str
    path: str
    strong: bool
    shape: tuple[int, ...] | None
    """None when a quantiser packed it."""

    def like(self, other: _Candidate) -> bool:
        """Whether the shapes could be embedding and head of one vocabulary."""
        if self.shape is None or other.shape is None:
            return True
        return self.shape[1] == other.shape[1] and abs(self.shape[0] - other.shape[0]) <= PADDING


def guess_pair(
    shapes: Mapping[str, tuple[int, ...]],
    vocab: int | None,
    dim: int | None,
    embed: str | None = None,
    head: str | None = None,
) -> Guess:
    """The likeliest embedding and head; `embed` or `head` is given when only the other one is to be found.

    With neither known, a tensor of the right shape under a meaningless name is listed as a candidate: it is never
    taken, but the other matrix is not reported as missing either.
    """
    embeds, heads = _candidates(shapes, {"embed" if embed is None else "", "head" if head is None else ""})
    if embed is not None:
        embeds = [_known(embed, shapes)]
        heads = [one for one in heads if one.like(embeds[0]) and _outermost(one)]
    if head is not None:
        heads = [_known(head, shapes)]
        embeds = [one for one in embeds if one.like(heads[0]) and _outermost(one)]
    left: list[str] = []
    chosen_embed, tied_embeds = _choose(_plausible(embeds, heads, vocab), heads, vocab, dim)
    left += tied_embeds
    if chosen_embed is not None:
        partners = [one for one in heads if one.like(chosen_embed)]
        transposed = [one for one in heads if one.strong and _transposed(one, chosen_embed)]
        odd = [
            one for one in heads if one.strong and one not in partners and one not in transposed and _fits(one, vocab)
        ]
        strong = [one for one in partners if one.strong]
        chosen_head, tied_heads = _choose(strong or partners or odd, [chosen_embed], vocab, dim)
        left += tied_heads + ([one.name for one in transposed] if chosen_head is None else [])
    else:
        # Without an embedding, a head must be taller than wide: CTC and diffusion heads are not.
        strong = [one for one in heads if one.strong and (head or one.shape is None or one.shape[0] > one.shape[1])]
        chosen_head, tied_heads = _choose(strong, [], vocab, dim) if not tied_embeds else (None, [])
        left += tied_heads
    if embed is None and head is None and not left:
        left += _hints(shapes, chosen_embed, chosen_head)
    return Guess(
        chosen_embed.name if chosen_embed else None,
        chosen_head.name if chosen_head else None,
        _explain(chosen_embed, chosen_head, left, vocab),
        tuple(left),
    )


def _candidates(shapes: Mapping[str, tuple[int, ...]], roles: set[str]) -> tuple[list[_Candidate], list[_Candidate]]:
    embeds: dict[str, _Candidate] = {}
    heads: dict[str, _Candidate] = {}
    for name, path in with_leaf(shapes, _LEAVES):
        path, shape = path.removesuffix(".weight"), shapes[name]
        kind = _kind(path)
        if kind is None or kind[0] not in roles or _never().search(path):
            continue
        packed = is_packed(name, shapes)
        if not packed and (len(shape) != 2 or min(shape) < 2):
            continue
        role, strong = kind
        known = embeds if role == "embed" else heads
        if path not in known or is_active(name):
            known[path] = _Candidate(name, path, strong, None if packed else shape)
    return list(embeds.values()), list(heads.values())


def _hints(shapes: Mapping[str, tuple[int, ...]], embed: _Candidate | None, head: _Candidate | None) -> list[str]:
    """Candidates to report, never to take: with one matrix found, others of its shape; with none, any "emb" name."""
    if embed is not None and head is not None:
        return []
    chosen = embed or head
    hints = []
    for name, shape in shapes.items():
        if (shape != chosen.shape) if chosen is not None else (len(shape) != 2 or "emb" not in name.lower()):
            continue
        path = plain(name).removesuffix(".weight")
        if not _never().search(path) and (chosen is None or _kind(path) is None):
            hints.append(name)
    return hints


def _kind(path: str) -> tuple[str, bool] | None:
    """Whether a path looks like "embed" or "head", and whether strongly."""
    parent, _, leaf = path.rpartition(".")
    last_two = f"{parent.rpartition('.')[2]}.{leaf}"
    if leaf in _STRONG_HEAD or last_two in _STRONG_HEAD:
        return "head", True
    if leaf in _STRONG_EMBED or (leaf in _INNER and parent.rpartition(".")[2] in _STRONG_EMBED):
        return "embed", True
    if leaf in _WEAK_EMBED:
        return "embed", False
    return ("head", False) if leaf in _WEAK_HEAD else None


def _outermost(one: _Candidate) -> bool:
    """Not inside a submodel, such as a speech decoder."""
    return all(level in WRAPPERS or level in _OUTER for level in one.path.split(".")[:-1])


def _known(name: str, shapes: Mapping[str, tuple[int, ...]]) -> _Candidate:
    shape = shapes[name]
    packed = is_packed(name, shapes) or len(shape) != 2
    return _Candidate(name, plain(name).removesuffix(".weight"), strong=True, shape=None if packed else shape)


def _plausible(embeds: list[_Candidate], heads: list[_Candidate], vocab: int | None) -> list[_Candidate]:
    """Strong names if there are any; else weak ones with a matching head or the right number of rows."""
    strong = [one for one in embeds if one.strong]
    if strong:
        return strong
    return [
        one
        for one in embeds
        if any(one.like(head) for head in heads) or (vocab is not None and one.shape is not None and _fits(one, vocab))
    ]


def _choose(
    candidates: list[_Candidate], others: list[_Candidate], vocab: int | None, dim: int | None
) -> tuple[_Candidate | None, list[str]]:
    """The best candidate, or none and the names of those that are equally good."""
    tests: list[Callable[[_Candidate], bool]] = [
        lambda one: _fits(one, vocab),
        lambda one: dim is None or one.shape is None or one.shape[1] == dim,
        lambda one: any(one.like(other) for other in others),
        lambda one: any(_siblings(one, other) for other in others),
        lambda one: one.path.rpartition(".")[2] == "shared",
        # The head belongs to the decoder, so the decoder's embedding is preferred to the encoder's.
        lambda one: "decoder" in one.path.split("."),
    ]
    for test in tests:
        if len(candidates) > 1:
            candidates = [one for one in candidates if test(one)] or candidates
    if len(candidates) == 1:
        return candidates[0], []
    return None, [one.name for one in candidates]


def _fits(one: _Candidate, vocab: int | None) -> bool:
    return vocab is None or one.shape is None or vocab <= one.shape[0] <= vocab + PADDING


def _siblings(one: _Candidate, other: _Candidate) -> bool:
    """Under the same top-level module: the file may hold several models."""
    return one.path.partition(".")[0] == other.path.partition(".")[0]


def _transposed(head: _Candidate, embed: _Candidate) -> bool:
    return head.shape is not None and embed.shape is not None and head.shape == embed.shape[::-1] != embed.shape


def _explain(embed: _Candidate | None, head: _Candidate | None, left: list[str], vocab: int | None) -> str:
    taken = [one for one in (embed, head) if one is not None]
    if not taken and not left:
        return "no tensor is named like a vocabulary matrix"
    text = f"guessed {' and '.join(one.name for one in taken)} by name and shape" if taken else "not guessed"
    if embed is not None and vocab is not None and not _fits(embed, vocab):
        assert embed.shape is not None
        text += f", although its {embed.shape[0]:,} rows are not the {vocab:,} of config.json"
    if left:
        text += f", because {' or '.join(left[:4])}{' …' if len(left) > 4 else ''} could be the {_missing(embed, head)}"
        text += "; pass their names as embed and head"
    return text


def _missing(embed: _Candidate | None, head: _Candidate | None) -> str:
    return "embedding" if embed is None else "head"
