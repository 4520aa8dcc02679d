"""Sample a continuation of the same held-out prompt from each variant's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.errors import TiebeamError

if TYPE_CHECKING:
    from tiebeam.compare.run_metrics import RunMetrics
    from tiebeam.corpus import Corpus

_PROMPT_TOKENS, _NEW_TOKENS = 24, 72


def sample_continuations(corpus: Corpus, runs: Sequence[RunMetrics]) -> list[dict[str, Any]]:
    """Continue the same prompt with each variant (first seed), decoded from the saved checkpoint."""
    from tiebeam.decode import Decoder

    first_seed = min(metrics.run.seed for metrics in runs)
    rows = []
    for metrics in runs:
        if metrics.run.seed != first_seed:
            continue
        variant, context = metrics.run.config.variant.name, metrics.run.config.settings.context
        prompt = _held_out_prompt(corpus, min(_PROMPT_TOKENS, context // 2))
        new = min(_NEW_TOKENS, context - len(prompt))
        try:
            decoder = Decoder.open(metrics.run.path)
            made = [t.id for t in decoder.generate(prompt, new, temperature=0.7, top_k=50, seed=0)]
        except TiebeamError as error:
            rows.append({"variant": variant, "prompt": "", "text": "", "note": str(error)})
            continue
        before, whole = (corpus.tokenizer.decode(ids) for ids in (prompt, [*prompt, *made]))
        rows.append({"variant": variant, "prompt": before, "text": whole[len(before) :]})
    return rows


def _held_out_prompt(corpus: Corpus, length: int) -> list[int]:
    """Start of the first held-out document with `length` tokens, else of the longest one."""
    best: NDArray[Any] = np.empty(0, np.int64)
    for document in corpus.val.documents(corpus.boundary):
        if len(document) > len(best):
            best = document[:length]
        if len(best) >= length:
            break
    return [int(t) for t in best[: max(1, length)]]
