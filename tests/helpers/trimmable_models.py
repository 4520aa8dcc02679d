"""Tiny models of transformers with a tokenizer of each kind that can be trimmed, and the text it was made from."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from helpers.lively_models import lively
from helpers.tiny_models import build

KINDS = ("byte-level", "byte-fallback", "unigram", "wordpiece")
OUTSIDE = "naïve café, 漢字 🙂 — “quotes”, Zwölf Boxkämpfer jagen Viktor, xylophone zzyzx"


@cache
def prose() -> str:
    """Part of Python's own documentation."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in ("assignment", "attribute-access", "bltin-type-objects", "for", "class"))


def tokenizer_json(kind: str, size: int = 700) -> dict[str, Any]:
    """A parsed tokenizer.json of about `size` tokens."""
    return json.loads({"byte-level": _byte_level, "byte-fallback": _byte_fallback, "unigram": _unigram,
                       "wordpiece": _wordpiece}[kind](size))  # fmt: skip


def save_trimmable(
    where: Path, kind: str = "byte-level", model_type: str = "llama", padding: int = 0, size: int = 700, **options: Any
) -> Any:
    """A model with a row for each token and `padding` more; returns the model."""
    import transformers

    document = tokenizer_json(kind, size)
    ids = {entry["content"]: entry["id"] for entry in document["added_tokens"]}
    rows = len({*_vocab(document).values(), *ids.values()}) + padding
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    if kind == "wordpiece":
        special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]",
                   "mask_token": "[MASK]"}  # fmt: skip
    roles = [role for role in ("bos_token", "eos_token", "pad_token") if special.get(role) in ids]
    named = {f"{role}_id": ids[special[role]] for role in roles}
    make = lively if model_type in ("llama", "gpt2", "qwen2") else build
    model = make(model_type, vocab_size=rows, **named, **options)
    model.save_pretrained(where)
    (where / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False, indent=2), encoding="utf-8")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(where / "tokenizer.json"), **{role: text for role, text in special.items() if text in ids}
    )
    tokenizer.save_pretrained(where)
    return model


def write_prose(where: Path) -> Path:
    (where / "prose.txt").write_text(prose(), encoding="utf-8")
    return where / "prose.txt"


def _vocab(document: dict[str, Any]) -> dict[str, int]:
    vocab = document["model"]["vocab"]
    return {piece: i for i, (piece, _) in enumerate(vocab)} if isinstance(vocab, list) else vocab


@cache
def _byte_level(size: int) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<pad>", "</s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([prose()], trainer)
    tokenizer.add_special_tokens(["<s>"])  # behind the vocabulary, as in many chat models
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer.to_str()


@cache
def spm_metadata(size: int) -> dict[str, Any]:
    """A SentencePiece BPE as a GGUF has it: tokens, scores, types. Any two pieces that make a third can be merged."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.Metaspace()
    plain.train_from_iterator(
        [prose()], trainers.BpeTrainer(vocab_size=size - 260, show_progress=False, limit_alphabet=90)
    )
    learned = plain.get_vocab()
    pieces = sorted(learned, key=lambda text: learned[text])
    tokens = ["<unk>", "<s>", "</s>", "<pad>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [2, 3, 3, 3, *[6] * 256, *[1] * len(pieces)]
    scores = [0.0] * 260 + [-float(rank) for rank in range(len(pieces))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 3,
    }


@cache
def _byte_fallback(size: int) -> str:
    from tiebeam.tokenizer import rebuild

    backend = rebuild(spm_metadata(size), "test").backend
    backend.add_special_tokens(["<unk>"])
    return str(backend.to_str())


@cache
def _unigram(size: int) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(prose().split("\n"), trainer)
    return tokenizer.to_str()


@cache
def _wordpiece(size: int) -> str:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        prose().split("\n"), trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer.to_str()
