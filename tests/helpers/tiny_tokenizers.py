"""Small real tokenizers."""

from __future__ import annotations

from pathlib import Path

TEXT = [
    "hello world, hello there; the world is wide and the hello is long",
    "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 12 345 6789",
]


def write_tokenizer(where: Path, size: int = 300) -> None:
    """A byte-level BPE tokenizer.json; below 256 tokens its alphabet is cut to what the texts need."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if size >= 256 else []
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<s>"], initial_alphabet=alphabet, limit_alphabet=size, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.save(str(where / "tokenizer.json"))
