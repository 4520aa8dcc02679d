"""The tokenizer inside a GGUF, rebuilt with `tokenizers`.

Two kinds matter for the models the decoder runs. "gpt2" is byte-level BPE: the file has the merges, and names
the rule by which text is split first. "llama" is sentencepiece BPE: the file has a score for each piece, and
of all neighbours that can be joined the best-scored join goes first, which is BPE with merges ranked by score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.errors import UnreadableInput
from tiebeam.tokenizer.load import Tokenizer, told

if TYPE_CHECKING:
    import tokenizers

_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6

# How text is split before BPE, by tokenizer.ggml.pre. \p{…} are Unicode classes.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "default", "mpt", "olmo", "jais", "phi-2"), (_GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"), (r"\p{N}", _GPT2)),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "dbrx", "smaug-bpe"), (_WORDS % "{1,3}",)
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), (_WORDS % "",)),
    "tekken": (_CASED % ("", "", ""),),
    "gpt-4o": (_CASED % (_ENDINGS, _ENDINGS, "{1,3}"),),
}
# Vocabularies in which a whole word is taken as it stands, whatever the merges would make of it.
_WORDS_FIRST = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken")


def build(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """The tokenizer that `metadata` describes."""
    kind = metadata["tokenizer.ggml.model"]
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise UnreadableInput(f"{source} names a {kind!r} tokenizer but holds no tokens for it; use --tokens 1,2,3")
    if kind not in ("gpt2", "llama"):
        raise UnreadableInput(f"{source} holds a {kind!r} tokenizer; gpt2 and llama kinds can be rebuilt: use --tokens")
    with told(f"the tokenizer in {source} cannot be rebuilt (use --tokens)"):
        tokens = list(tokens)
        types = list(metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens))
        if kind == "gpt2":
            backend = _byte_level(metadata, tokens, source)
        else:
            backend = _sentencepiece(metadata, tokens, types, source)
        _add_special(backend, tokens, types)
    return Tokenizer(backend, _ends(metadata), _start(metadata, kind))


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], source: str) -> tokenizers.Tokenizer:
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    rule = metadata.get("tokenizer.ggml.pre", "default")
    if rule not in _SPLITS:
        known = ", ".join(sorted(_SPLITS))
        raise UnreadableInput(f"{source} splits text by the rule {rule!r}, which is not known ({known}); use --tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges") or ()]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [pair for pair in merges if len(pair) == 2 and pair[0] in vocab and pair[1] in vocab]
    merges = [pair for pair in merges if pair[0] + pair[1] in vocab]
    backend = Backend(models.BPE(vocab, merges, ignore_merges=rule in _WORDS_FIRST))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[rule]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: list[str], types: list[int], source: str
) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    scores = list(metadata.get("tokenizer.ggml.scores") or [])
    if len(scores) != len(tokens):
        raise UnreadableInput(f"{source} has {len(tokens):,} tokens but {len(scores):,} scores for them; use --tokens")
    vocab = {token: i for i, token in enumerate(tokens)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    model = models.BPE(
        vocab,
        _merges(tokens, scores, types, vocab),
        unk_token=tokens[unknown] if 0 <= unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Backend(model)
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    backend.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend("▁")] if prefix else []), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if prefix else []),
        ]
    )
    return backend


def _merges(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], vocab: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best-scored first; ties in the order of the pieces."""
    ranked = []
    for i, token in enumerate(tokens):
        if len(token) < 2 or types[i] in (_CONTROL, _USER_DEFINED, _BYTE):
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                ranked.append((-scores[i], i, vocab[left], vocab[right]))
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, _, left, right in ranked]


def _add_special(backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Tokens that are matched whole before anything else."""
    from tokenizers import AddedToken

    marked = list(zip(tokens, types, strict=False))
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in marked if kind == _CONTROL]
    )
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t, kind in marked if kind == _USER_DEFINED])


def _ends(metadata: Mapping[str, Any]) -> frozenset[int]:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (metadata.get(f"tokenizer.ggml.{key}") for key in keys)
    return frozenset(i for i in found if type(i) is int)


def _start(metadata: Mapping[str, Any], kind: str) -> tuple[int, ...]:
    """The start token goes first if the file says so; where it says nothing, sentencepiece models have one."""
    rule = metadata.get("tokenizer.ggml.pre")
    add = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama" or rule in (*_WORDS_FIRST, "tekken"))
    first = metadata.get("tokenizer.ggml.bos_token_id", 1 if kind == "llama" else None)
    return (first,) if add and type(first) is int else ()
