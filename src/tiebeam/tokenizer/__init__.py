"""Tokenizers of checkpoints: tokenizer.json beside the weights, or the tokenizer inside a GGUF.

from tiebeam.tokenizer import open_tokenizer

tokenizer = open_tokenizer(open_checkpoint("model"))
tokenizer.decode(tokenizer.encode("Once upon a time"))
"""

from typing import TYPE_CHECKING

from tiebeam._lazy import loader

if TYPE_CHECKING:
    from tiebeam.tokenizer.gguf import rebuild
    from tiebeam.tokenizer.id_range import TokenIds, token_ids
    from tiebeam.tokenizer.load import Tokenizer, open_tokenizer

__all__ = ["TokenIds", "Tokenizer", "open_tokenizer", "rebuild", "token_ids"]

__getattr__ = loader(
    __name__,
    {
        "Tokenizer": "tiebeam.tokenizer.load",
        "open_tokenizer": "tiebeam.tokenizer.load",
        "rebuild": "tiebeam.tokenizer.gguf",
        "TokenIds": "tiebeam.tokenizer.id_range",
        "token_ids": "tiebeam.tokenizer.id_range",
    },
)
