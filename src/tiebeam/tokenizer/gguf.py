"""Rebuild the tokenizer inside a GGUF with the `tokenizers` package.

Two kinds are supported. "gpt2" is byte-level BPE: the file has the merges, and the name of the rule that splits the
text first. "llama" is SentencePiece BPE: the file has a score for each piece, and the merge with the best score is
applied first, which is BPE with the merges ranked by score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.errors import UnreadableInput
from tiebeam.tokenizer.load import Tokenizer, explaining_failure

if TYPE_CHECKING:
    import tokenizers

_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6

# Patterns that split the text before BPE, by the value of tokenizer.ggml.pre.
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
# Rules under which a word that is in the vocabulary is one token, whatever the merges would give.
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken")


def rebuild(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """The tokenizer that `metadata` describes."""
    kind = metadata["tokenizer.ggml.model"]
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise UnreadableInput(f"{source} declares a {kind!r} tokenizer but has no tokens; give token ids")
    if kind not in ("gpt2", "llama"):
        raise UnreadableInput(f"{source} has a {kind!r} tokenizer; only gpt2 and llama can be read; give token ids")
    with explaining_failure(f"the tokenizer in {source} cannot be rebuilt (give token ids)"):
        tokens = list(tokens)
        types = list(metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens))
        if kind == "gpt2":
            backend = _byte_level(metadata, tokens, source)
        else:
            backend = _sentencepiece(metadata, tokens, types, source)
        _add_special(backend, tokens, types)
    return Tokenizer(backend, _stop_ids(metadata), _start(metadata, kind))


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], source: str) -> tokenizers.Tokenizer:
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    rule = metadata.get("tokenizer.ggml.pre", "default")
    if rule not in _SPLITS:
        known = ", ".join(sorted(_SPLITS))
        raise UnreadableInput(
            f"{source} has the unknown pre-tokenizer {rule!r} (known: {known}); give token ids instead"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges") or ()]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [pair for pair in merges if len(pair) == 2 and pair[0] in vocab and pair[1] in vocab]
    merges = [pair for pair in merges if pair[0] + pair[1] in vocab]
    backend = Backend(models.BPE(vocab, merges, ignore_merges=rule in _WHOLE_WORDS))
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
        raise UnreadableInput(f"{source} has {len(tokens):,} tokens but {len(scores):,} scores; give token ids")
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
    """Every merge of two pieces into a third, best score first, then in the order of the pieces."""
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
    """Register the tokens that are matched whole, before the text is split."""
    from tokenizers import AddedToken

    marked = list(zip(tokens, types, strict=False))
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in marked if kind == _CONTROL]
    )
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t, kind in marked if kind == _USER_DEFINED])


def _stop_ids(metadata: Mapping[str, Any]) -> frozenset[int]:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (metadata.get(f"tokenizer.ggml.{key}") for key in keys)
    return frozenset(i for i in found if type(i) is int)


def _start(metadata: Mapping[str, Any], kind: str) -> tuple[int, ...]:
    """The start token, if the file asks for one. SentencePiece files have one unless they declare otherwise."""
    rule = metadata.get("tokenizer.ggml.pre")
    add = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama" or rule in (*_WHOLE_WORDS, "tekken"))
    first = metadata.get("tokenizer.ggml.bos_token_id", 1 if kind == "llama" else None)
    return (first,) if add and type(first) is int else ()
