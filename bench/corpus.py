"""Time of a corpus build against tokenizing alone, and of the second call against hashing the text.

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
from tiebeam.corpus.documents import read_documents
from tiebeam.corpus.text_sources import list_sources


def rows(quick: bool) -> list[Row]:
    limit = 3_000_000 if quick else None
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        options = {"max_bytes": limit}
        built = build_corpus([], directory / "kept", **options)
        given = built.path / "tokenizer.json"
        files = list_sources([]).files[: built.manifest["examined"]]
        texts = []
        for chunk in itertools.chain.from_iterable(read_documents(file) for file in files):
            if chunk.starts_document:
                texts.append(chunk.text)
            else:
                texts[-1] += chunk.text
        bare = built.tokenizer._tokenizer  # type: ignore[attr-defined]

        def build() -> None:
            build_corpus([], directory / "fresh", tokenizer=given, **options)
            shutil.rmtree(directory / "fresh")

        def encode() -> None:
            """Batches of about a megabyte, the fastest size for the library."""
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
        again = interleaved(
            {"again": lambda: build_corpus([], directory / "kept", **options), "hash": read_and_hash}, rounds
        )
    return [
        row("read, split, tokenise and write", whole["build"] / whole["encode"], "encode_batch_fast alone", "<= 1.25"),
        row("the second call", again["again"] / again["hash"], "hashing the sources", "<= 3"),
        row("the second call", again["again"] / whole["build"], "the first call", "<= 0.1"),
    ]


if __name__ == "__main__":
    main(rows)
