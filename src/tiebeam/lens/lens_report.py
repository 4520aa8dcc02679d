"""The report of a lens: the whole path, chosen tokens, row norms by frequency; as a dictionary, text and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam._html import escape
from tiebeam._visible import visible
from tiebeam.lens.direct_path import Lens

Array = NDArray[np.floating[Any]]
RANKS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


def report_of(
    lens: Lens, tokens: Sequence[int] = (), counts: NDArray[np.int64] | None = None, top: int = 10
) -> dict[str, Any]:  # counts: [V], how often each token occurs in a text
    """The document of `tiebeam lens --json`. Without `tokens` it covers the whole vocabulary only."""
    D = lens.dim
    joint = np.cumsum(lens.joint_spectrum)
    degrees = np.degrees(lens.angles)
    self_logits = lens.self_logits
    found: dict[str, Any] = {
        "vocab": lens.vocab,
        "dim": D,
        "one_table": lens.one_table,
        "norm": lens.norm,
        "scales": lens.scales,
        "exact": lens.exact,
        "errors": lens.errors,
        "notes": list(lens.tables.notes),
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


def headline(found: dict[str, Any]) -> str:
    """Tied or untied, the size, and what the path includes."""
    parts = [
        "tied" if found["one_table"] else "untied",
        f"{found['vocab']:,} x {found['dim']:,}",
        "with the final norm" if found["norm"] else "without the final norm",
        *([] if found["scales"] else ["without scales"]),
    ]
    return " · ".join(parts)


def figures(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(name, value, explanation) of the whole path."""
    path, own, angles = found["path"], found["self_logits"], found["angles"]
    error = {name: f" (± {100 * value:.2g})" for name, value in found["errors"].items()}
    rows = [
        ("symmetric", f"{100 * path['symmetric']:.1f}%", "of the path's energy; the rest is antisymmetric"),
        ("negative", f"{100 * path['negative']:.1f}%", "of the symmetric part is in negative eigenvalues; "
         f"0 for E.Eᵀ{error.get('negative', '')}"),
        ("rank", f"{path['rank']:,}", f"effective rank {found['effective_rank']:,.0f}"),
        ("self-logits", f"{own['median']:.2f}", f"median logit of a token after itself, {own['least']:.2f} to "
         f"{own['most']:.2f}; {100 * own['negative']:.0f}% negative"),
    ]  # fmt: skip
    if not found["one_table"]:
        kept = ", ".join(f"{100 * row['kept']:.1f}% at rank {row['rank']:,}" for row in found["joint"][2:])
        rows += [
            (
                "angles",
                f"{angles['median']:.1f}°",
                f"median between the two tables, up to {angles['largest']:.1f}°",
            ),
            ("joint", "", f"one table for both keeps {kept}{error.get('joint', '')}"),
        ]
    return rows


def as_text(lens: Lens) -> str:
    found = report_of(lens)
    lines = [f"{lens.source or 'lens'} · {headline(found)}", *(f"  note: {note}" for note in found["notes"])]
    lines += [f"  {name:<11}  {value:>7}  {words}" for name, value, words in figures(found)]
    return "\n".join(map(visible, lines))


def as_html(lens: Lens) -> str:
    found = report_of(lens)
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td><td>{escape(words)}</td></tr>"
        for name, value, words in figures(found)
    )
    notes = "".join(f"<p>note: {escape(note)}</p>" for note in found["notes"])
    return f"<p><b>{escape(lens.source)}</b> · {escape(headline(found))}</p>{notes}<table>{rows}</table>"


def norms_by_frequency(norms: tuple[Array, Array], counts: NDArray[np.int64], bins: int = 12) -> dict[str, Any]:
    """Mean row norms in bins of equal log frequency, and their rank correlation with frequency."""
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
    """Rank correlation; ties get their mean rank. None where one side is constant."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum()) / size if size else None


def effective_rank(singular: Array) -> float:
    """exp of the entropy of the normalised singular values: the number of directions that the path uses."""
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
