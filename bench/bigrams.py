"""Speed of counting bigrams in a token stream, against numpy.unique on pairs and in tokens per second.

python bench/bigrams.py [--quick] [--json]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from harness import Bench, Row, main, several, timed

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


def rows(bench: Bench) -> Iterator[Row]:
    for vocab in (1024, 4096, 50257):
        tokens = text_like(2_000_000, vocab)

        def unique(tokens: np.ndarray = tokens, vocab: int = vocab) -> object:
            return np.unique(tokens[:-1].astype(np.int64) * vocab + tokens[1:], return_counts=True)

        def ours(tokens: np.ndarray = tokens, vocab: int = vocab) -> object:
            return count_bigrams(tokens, vocab)

        found = bench.measure({"unique": unique, "ours": ours}, "unique", bench.budget * 0.15)
        yield timed(f"counting speed, V {vocab:,}", found, "ours", "numpy.unique", ">= 1.2", speed=True,
                    limited_by="the sort of the pairs")  # fmt: skip
        if vocab <= 4096:
            speeds = [len(tokens) / _cpu_seconds(ours) / GOAL for _ in range(7)]
            yield several(f"tokens per second of CPU time, V {vocab:,}", speeds, "30 million on one core", ">= 1",
                          limited_by="the sort of the pairs")  # fmt: skip


if __name__ == "__main__":
    main(rows)
