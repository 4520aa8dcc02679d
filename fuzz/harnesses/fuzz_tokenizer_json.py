"""tokenizer.json and the small files beside it, for a tiny model: counts of ids, findings, encoding of a text."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from random import Random

from cases import Case
from mutations import VALUES, mutate_json, write_json
from verbs import verb

FILE = ""
COVERED = ("tiebeam.tokenizer", "tiebeam.inspection.vocabulary")
NAMES = ("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "generation_config.json", "vocab.json")
IDS = (0, 1, 7, 8, 9, -1, 2**31, 2**32, 2**53, 2**64, 10**30, 1.5, "1", None, True)
_model: dict[str, bytes] = {}


def seeds() -> list[Case]:
    import numpy as np
    from safetensors.numpy import save
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    embed = np.arange(96, dtype=np.float32).reshape(32, 3)
    _model["model.safetensors"] = save({"model.embed_tokens.weight": embed, "model.norm.weight": embed[0].copy()})
    config = {
        "model_type": "llama",
        "vocab_size": 32,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    _model["config.json"] = json.dumps(config).encode()
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *"abcdefghijklmnop", "ab", "cd", "abcd"])}
    bpe = Tokenizer(models.BPE(vocab, [("a", "b"), ("c", "d"), ("ab", "cd")], unk_token="<unk>"))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    bpe.add_special_tokens(["<s>", "</s>", "<extra>"])
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], 0, False))
    settings = {
        "added_tokens_decoder": {"1": {"content": "<s>", "special": True}}, "bos_token": "<s>", "eos_token": "</s>",
        "chat_template": "{{ messages }}", "model_max_length": 64,
    }  # fmt: skip
    beside = {
        "tokenizer_config.json": settings, "added_tokens.json": {"<extra>": 22},
        "generation_config.json": {"eos_token_id": [2, 3], "bos_token_id": 1},
    }  # fmt: skip
    first = {name: json.dumps(document).encode() for name, document in beside.items()}
    return [
        {"tokenizer.json": bpe.to_str().encode(), **first},
        {"tokenizer.json": unigram.to_str().encode()},
        {"vocab.json": json.dumps(vocab).encode(), "tokenizer_config.json": first["tokenizer_config.json"]},
    ]


def mutate(case: Case, rng: Random) -> Case:
    name = rng.choice(list(case) or ["tokenizer.json"])
    raw = case.get(name, b"{}")
    if rng.random() < 0.05:
        return {rng.choice(NAMES) if other == name else other: content for other, content in case.items()}
    if rng.random() < 0.4:
        with suppress(ValueError, RecursionError, TypeError, KeyError, AttributeError, IndexError):
            document = json.loads(raw)
            vocab = document["model"]["vocab"] if name == "tokenizer.json" else document
            if rng.random() < 0.5 and name == "tokenizer.json":
                token = rng.choice(document["added_tokens"])
                token[rng.choice(("id", "content", "special"))] = rng.choice((*IDS, *VALUES))
            elif isinstance(vocab, dict):
                vocab[rng.choice([*vocab, "new", ""])] = rng.choice((*IDS, *VALUES))
            return {**case, name: write_json(document, rng)}
    return {**case, name: mutate_json(raw, rng)}


def read(directory: Path) -> object:
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.errors import TiebeamError
    from tiebeam.tokenizer import open_tokenizer, token_ids

    for name, raw in _model.items():
        (directory / name).write_bytes(raw)
    for arguments in (("inspect",), ("doctor", "--json")):
        with suppress(TiebeamError):
            verb(arguments[0], directory, *arguments[1:])
    checkpoint = open_checkpoint(directory)
    tokenizer = open_tokenizer(checkpoint)  # refused or not
    with suppress(TiebeamError):
        token_ids(checkpoint)
    if tokenizer is not None:
        with suppress(TiebeamError):
            tokenizer.decode(tokenizer.encode("abcd <s> é\0"))
    return None
