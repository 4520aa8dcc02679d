"""Time of a corpus build against tokenizing alone, and of the second call against hashing the text.

python bench/corpus.py [--quick] [--json]
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness import Bench, Row, main, timed

from tiebeam.corpus import build_corpus
from tiebeam.corpus.documents import read_documents
from tiebeam.corpus.text_sources import list_sources


def rows(bench: Bench) -> Iterator[Row]:
    limit = 3_000_000 if bench.quick else 12_000_000
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        options = {"max_bytes": limit}
        built = build_corpus([], directory / "kept", **options)
        given = built.path / "tokenizer.json"
        files = list_sources([]).files[: built.manifest["examined"]]
        paths = [file.path for file in files]
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
            for path in paths:
                hashlib.sha256(path.read_bytes()).digest()

        whole = bench.measure({"encode": encode, "build": build}, "encode", bench.budget * 0.3)
        yield timed("read, split, tokenise and write", whole, "build", "encode_batch_fast alone", "<= 1.25",
                    bound=">= 1.0", limited_by="the tokenizer")  # fmt: skip
        again = bench.measure(
            {"hash": read_and_hash, "again": lambda: build_corpus([], directory / "kept", **options)}, "hash",
            bench.budget * 0.15,
        )  # fmt: skip
        yield timed("the second use of a corpus", again, "again", "hashing its sources", "<= 3", bound=">= 1.0",
                    limited_by="SHA-256 of the sources", job="the second use of a cached corpus")  # fmt: skip


if __name__ == "__main__":
    main(rows)
