"""A corpus: its manifest, its tokenizer and its token shards."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

from cases import Case, load
from mutations import mutate_bytes, mutate_json
from pickle_mutations import INTEGERS

FILE = ""


def seeds() -> list[Case]:
    from tiebeam.corpus import build_corpus

    with tempfile.TemporaryDirectory() as where:
        text = Path(where) / "text.txt"
        text.write_text("\n\n".join(f"the beam ties the roof number {i}" for i in range(60)))
        corpus = build_corpus([text], Path(where) / "corpus", vocab=260)
        built = load(corpus.path, "")
    golf = {f"fineweb_{name}" if name.endswith(".bin") else name: raw for name, raw in built.items()}
    del golf["corpus.json"]
    return [built, golf]


def mutate(case: Case, rng: Random) -> Case:
    name = rng.choice([name for name in case if not name.startswith("tokenizer") or rng.random() < 0.1])
    raw = case[name]
    if rng.random() < 0.05:
        return {key: value for key, value in case.items() if key != name}
    if not name.endswith(".bin"):
        return {**case, name: mutate_json(raw, rng)}
    at = rng.choice((0, 4, 8, 12)) if rng.random() < 0.6 else -1
    if at < 0:
        return {**case, name: mutate_bytes(raw, rng)}
    value = (rng.choice(INTEGERS) % (1 << 32)).to_bytes(4, "little")
    return {**case, name: raw[:at] + value + raw[at + 4 :]}


def read(directory: Path) -> object:
    from tiebeam.corpus import open_corpus

    corpus = open_corpus(directory)
    for stream in (corpus.train, corpus.val):
        for _ in stream.chunks():
            pass
        for _ in stream.documents(corpus.boundary):
            pass
    corpus.to_dict()
    return corpus.vocab
