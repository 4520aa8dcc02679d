"""Speed of counting bigrams in a token stream, against numpy.unique on pairs and in tokens per second.

python bench/bigrams.py [--quick] [--json]
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py is named like a standard module, and the standard one must win

import time
from collections.abc import Callable

import numpy as np
from _common import Row, interleaved, main, row

from tiebeam.lens.bigram_counts import count_bigrams

GOAL = 30e6  # tokens per second on one core


def text_like(tokens: int, vocab: int) -> np.ndarray:
    """Tokens with Zipf frequencies, as in text."""
    ranks = np.random.default_rng(0).zipf(1.2, 4 * tokens)
    return (ranks[ranks <= vocab][:tokens] - 1).astype(np.uint16)


def _cpu_seconds(run: Callable[[], object]) -> float:
    """CPU time of one call: unlike wall time it does not depend on the load of the machine."""
    start = time.process_time()
    run()
    return time.process_time() - start


def rows(quick: bool) -> list[Row]:
    found = []
    for vocab in (1024, 4096, 50257):
        tokens = text_like(2_000_000 if quick else 8_000_000, vocab)

        def unique(tokens: np.ndarray = tokens, vocab: int = vocab) -> object:
            return np.unique(tokens[:-1].astype(np.int64) * vocab + tokens[1:], return_counts=True)

        def ours(tokens: np.ndarray = tokens, vocab: int = vocab) -> object:
            return count_bigrams(tokens, vocab)

        best = interleaved({"ours": ours, "unique": unique}, rounds=2 if quick else 4)
        speed = len(tokens) / min(_cpu_seconds(ours) for _ in range(3))
        found.append(row(f"counting speed, V {vocab:,}", best["unique"] / best["ours"], "numpy.unique", ">= 1.2"))
        if vocab <= 4096:
            found.append(row(f"tokens per second, V {vocab:,}", speed / GOAL, "30 million on one core", ">= 1"))
    return found


if __name__ == "__main__":
    main(rows)
