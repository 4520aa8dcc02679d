"""Building a corpus: all of it against the tokenizer's own work alone, and the second call against reading the text.

python bench/corpus.py [--quick] [--json]
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py is named like a standard module, and the standard one must win

import hashlib
import itertools
import shutil
import tempfile
from pathlib import Path

from _common import Row, interleaved, main, row

from tiebeam.corpus import build_corpus
from tiebeam.corpus.text_sources import list_sources, read_pieces


def rows(quick: bool) -> list[Row]:
    limit = 3_000_000 if quick else None
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        asked = {"max_bytes": limit}
        built = build_corpus([], place / "kept", **asked)
        given = built.path / "tokenizer.json"
        files = list_sources([]).files[: built.manifest["examined"]]
        texts = []
        for piece in itertools.chain.from_iterable(read_pieces(file) for file in files):
            if piece.first:
                texts.append(piece.text)
            else:
                texts[-1] += piece.text
        bare = built.tokenizer._tokenizer  # type: ignore[attr-defined]

        def build() -> None:
            build_corpus([], place / "fresh", tokenizer=given, **asked)
            shutil.rmtree(place / "fresh")

        def encode() -> None:
            """In batches of about a megabyte, where the library is at its best."""
            batch, size = [], 0
            for text in texts:
                batch.append(text)
                size += len(text)
                if size > 1 << 20:
                    bare.encode_batch_fast(batch, add_special_tokens=False)
                    batch, size = [], 0
            bare.encode_batch_fast(batch, add_special_tokens=False)

        def read_and_hash() -> None:
            for file in files:
                hashlib.sha256(file.path.read_bytes()).digest()

        rounds = 2 if quick else 4
        whole = interleaved({"build": build, "encode": encode}, rounds)
        again = interleaved({"again": lambda: build_corpus([], place / "kept", **asked), "hash": read_and_hash}, rounds)
    return [
        row("read, split, tokenise and write", whole["build"] / whole["encode"], "encode_batch_fast alone", "<= 1.25"),
        row("the second call", again["again"] / again["hash"], "hashing the sources", "<= 3"),
        row("the second call", again["again"] / whole["build"], "the first", "<= 0.1"),
    ]


if __name__ == "__main__":
    main(rows)
