"""Text -> tokenizer -> token shards, with byte counts.

`build_corpus` builds a Corpus from text, or opens the one it built before; `open_corpus` opens a directory of tokens;
`Batches` samples training windows and `every_target` reads a split once in order.
"""

from tiebeam.corpus.batches import Batches, every_target
from tiebeam.corpus.build import build_corpus
from tiebeam.corpus.store import Corpus, bits_per_byte, cache_directory, is_corpus, open_corpus
from tiebeam.corpus.text_sources import PYTHON

__all__ = [
    "PYTHON",
    "Batches",
    "Corpus",
    "bits_per_byte",
    "build_corpus",
    "cache_directory",
    "every_target",
    "is_corpus",
    "open_corpus",
]
