"""What a reader can look at with their own eyes: a piece of the bigram table, the models' own paths, their prose."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.errors import TiebeamError
from tiebeam.lens.rank_bounds import pmi
from tiebeam.lens.zero_layer import count_splits, most_frequent

if TYPE_CHECKING:
    from tiebeam.compare.run_metrics import Examined
    from tiebeam.corpus import Corpus

HEAT_TOKENS = 18
_COMMON = 150
_PROMPT, _NEW = 24, 72


def heat(corpus: Corpus, examined: Sequence[Examined]) -> dict[str, Any]:
    """Common tokens whose order matters most: their mutual information, and what each model's direct path says."""
    from tiebeam.lens.direct_path import Lens

    train, _, _ = count_splits(corpus)
    common = most_frequent(train, _COMMON)
    table = train.keep(common)
    information = pmi(table)[:-1, :-1]  # the last one stands for all other tokens
    lopsided = ((information - information.T) / 2) ** 2 * table.dense()[:-1, :-1]
    weight = lopsided.sum(axis=0) + lopsided.sum(axis=1)
    chosen = np.sort(np.argsort(-weight, kind="stable")[:HEAT_TOKENS])
    ids = common[chosen]
    found: dict[str, Any] = {
        "ids": ids.tolist(),
        "labels": [spelled(corpus, int(i)) for i in ids],
        "pmi": _rounded(information[np.ix_(chosen, chosen)]),
        "paths": {},
    }
    first = min(e.run.seed for e in examined)
    for e in examined:
        if e.run.seed == first:
            found["paths"][e.run.contender.variant.name] = _rounded(Lens.open(e.run.path).direct(ids.tolist()).matrix)
    return found


def samples(corpus: Corpus, examined: Sequence[Examined]) -> list[dict[str, Any]]:
    """Each variant goes on with the same held-out text, run from its checkpoint by the NumPy decoder."""
    from tiebeam.decode import Decoder

    first = min(e.run.seed for e in examined)
    rows = []
    for e in examined:
        if e.run.seed != first:
            continue
        context = e.run.contender.settings.context
        prompt = _opening(corpus, min(_PROMPT, context // 2))
        new = min(_NEW, context - len(prompt))
        try:
            decoder = Decoder.open(e.run.path)
            made = [t.id for t in decoder.generate(prompt, new, temperature=0.7, top_k=50, seed=0)]
        except TiebeamError as error:
            rows.append({"variant": e.run.contender.variant.name, "prompt": "", "text": "", "note": str(error)})
            continue
        before, whole = (corpus.tokenizer.decode(ids) for ids in (prompt, [*prompt, *made]))
        rows.append({"variant": e.run.contender.variant.name, "prompt": before, "text": whole[len(before) :]})
    return rows


def spelled(corpus: Corpus, token: int) -> str:
    """A token's text with its blanks made visible."""
    text = corpus.tokenizer.decode([token])
    text = re.sub(" {3,}", lambda run: f"·×{len(run[0])}", text)
    shown = "".join("·" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= 12 else shown[:11] + "…"


def _opening(corpus: Corpus, length: int) -> list[int]:
    """The beginning of the first held-out document that is long enough to have one."""
    best: NDArray[Any] = np.empty(0, np.int64)
    for document in corpus.val.documents(corpus.boundary):
        if len(document) > len(best):
            best = document[:length]
        if len(best) >= length:
            break
    return [int(t) for t in best[: max(1, length)]]


def _rounded(matrix: NDArray[np.floating[Any]]) -> list[list[float]]:
    return [[round(float(x), 4) for x in row] for row in matrix]
