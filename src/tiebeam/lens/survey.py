"""Everything the lens can say of one model, in one plain record: the whole path, chosen tokens, norms by frequency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.lens.direct_path import Lens

Array = NDArray[np.floating[Any]]
RANKS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


def survey(
    lens: Lens, tokens: Sequence[int] = (), counts: NDArray[np.int64] | None = None, top: int = 10
) -> dict[str, Any]:  # counts: [V], how often each token occurs in a text
    """The record behind `tiebeam lens`. Without `tokens` it is about the whole vocabulary alone."""
    D = lens.gram.shape[0] // 2
    joint = np.cumsum(lens.joint_spectrum)
    degrees = np.degrees(lens.angles)
    self_logits = lens.self_logits
    found: dict[str, Any] = {
        "vocab": lens.vocab,
        "dim": D,
        "one_table": lens.one_table,
        "norm": lens.norm,
        "scales": lens.scales,
        "notes": list(lens.ends.notes),
        "path": lens.energy.to_dict(),
        "spectrum": [float(x) for x in lens.spectrum],
        "effective_rank": effective_rank(lens.spectrum),
        "self_logits": {
            "median": float(np.median(self_logits)),
            "least": float(self_logits.min()),
            "most": float(self_logits.max()),
            "negative": float((self_logits < 0).mean()),
        },
        "angles": {"median": float(np.median(degrees)), "largest": float(degrees.max(initial=0.0))},
        "joint": [{"rank": round(f * D), "kept": float(joint[min(2 * D, max(1, round(f * D))) - 1])} for f in RANKS],
        "joint_spectrum": [float(x) for x in lens.joint_spectrum],
    }
    if len(tokens):
        found["chosen"] = lens.direct(tokens).to_dict()
        by_embed = lens.neighbours(tokens, "embed", top)
        by_head = by_embed if lens.one_table else lens.neighbours(tokens, "head", top)
        found["tokens"] = [
            {"id": int(i), "label": lens.label(int(i)), "next": _named(lens, nxt), "embed": _named(lens, one),
             "head": _named(lens, two)}
            for i, nxt, one, two in zip(tokens, lens.continuations(tokens, top), by_embed, by_head, strict=True)
        ]  # fmt: skip
    if counts is not None:
        found["norms"] = norms_by_frequency(lens.norms, counts)
    return found


def norms_by_frequency(norms: tuple[Array, Array], counts: NDArray[np.int64], bins: int = 12) -> dict[str, Any]:
    """Mean row norms of both tables over bins of equal log frequency, and how they go together by rank."""
    seen = counts[: len(norms[0])] > 0
    logs = np.log10(counts[: len(norms[0])][seen].astype(np.float64)) if seen.any() else np.zeros(0)
    rows = []
    if logs.size:
        edges = np.linspace(logs.min(), logs.max() + 1e-9, bins + 1)
        place = np.clip(np.digitize(logs, edges) - 1, 0, bins - 1)
        for i in range(bins):
            here = place == i
            if here.any():
                rows.append(
                    {
                        "count": float(10 ** logs[here].mean()),
                        "tokens": int(here.sum()),
                        "embed": float(norms[0][seen][here].mean()),
                        "head": float(norms[1][seen][here].mean()),
                    }
                )
    unseen = ~seen
    return {
        "rows": rows,
        "spearman": {
            "embed": spearman(logs, norms[0][seen]) if logs.size else None,
            "head": spearman(logs, norms[1][seen]) if logs.size else None,
        },
        "unseen": {
            "tokens": int(unseen.sum()),
            "embed": float(norms[0][unseen].mean()) if unseen.any() else None,
            "head": float(norms[1][unseen].mean()) if unseen.any() else None,
        },
    }


def spearman(a: Array, b: Array) -> float | None:  # [n], [n]
    """Correlation of ranks, ties at their mean rank; None where one side does not vary."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum()) / size if size else None


def effective_rank(singular: Array) -> float:
    """exp of the entropy of the singular values taken as shares: how many directions the path really uses."""
    total = float(singular.sum())
    if not total:
        return 0.0
    p = singular[singular > 0] / total
    return float(np.exp(-(p * np.log(p)).sum()))


def _ranks(values: Array) -> Array:
    _, where, times = np.unique(values, return_inverse=True, return_counts=True)
    after = np.cumsum(times)
    ranks: Array = (after - (times - 1) / 2)[where]
    return ranks


def _named(lens: Lens, pairs: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
    return [{"id": i, "label": lens.label(i), "score": score} for i, score in pairs]
