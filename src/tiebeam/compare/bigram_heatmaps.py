"""Data of the report's heatmaps: PMI of token pairs in the text, and each model's direct-path logits for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.lens.rank_bounds import pmi
from tiebeam.lens.zero_layer import count_splits, most_frequent

if TYPE_CHECKING:
    from tiebeam.compare.run_metrics import RunMetrics
    from tiebeam.corpus import Corpus

HEATMAP_TOKENS = 18
_CANDIDATES = 150


def bigram_heatmaps(corpus: Corpus, runs: Sequence[RunMetrics]) -> dict[str, Any]:
    """Choose the frequent tokens whose order matters most; return their PMI and direct-path logits per variant."""
    from tiebeam.lens.direct_path import Lens

    train, _, _ = count_splits(corpus)
    frequent = most_frequent(train, _CANDIDATES)
    table = train.keep(frequent)
    information = pmi(table)[:-1, :-1]  # the last row and column are all other tokens together
    antisymmetric = ((information - information.T) / 2) ** 2 * table.dense()[:-1, :-1]
    weight = antisymmetric.sum(axis=0) + antisymmetric.sum(axis=1)
    chosen = np.sort(np.argsort(-weight, kind="stable")[:HEATMAP_TOKENS])
    ids = frequent[chosen]
    found: dict[str, Any] = {
        "ids": ids.tolist(),
        "labels": [printable_token(corpus, int(i)) for i in ids],
        "pmi": _rounded(information[np.ix_(chosen, chosen)]),
        "paths": {},
    }
    first_seed = min(metrics.run.seed for metrics in runs)
    for metrics in runs:
        if metrics.run.seed == first_seed:
            path = Lens.open(metrics.run.path).direct(ids.tolist())
            found["paths"][metrics.run.config.variant.name] = _rounded(path.matrix)
    return found


def printable_token(corpus: Corpus, token: int) -> str:
    """Text of a token with visible white space, at most 12 characters."""
    text = corpus.tokenizer.decode([token])
    text = re.sub(" {3,}", lambda run: f"·×{len(run[0])}", text)
    shown = "".join("·" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= 12 else shown[:11] + "…"


def _rounded(matrix: NDArray[np.floating[Any]]) -> list[list[float]]:
    return [[round(float(x), 4) for x in row] for row in matrix]
