"""Figures of a comparison (matplotlib): SVG and PNG files for documents, and some of them as inline SVG for the page.

The page draws curves and gaps itself (static/curves.js). Each figure is narrow enough for a phone. Inline, the text
colour becomes `currentColor`, so that it follows the page's light or dark theme; the files have a white background.
"""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tiebeam._fs import write_bytes, write_text

INK, RULE = "#1b1f24", "#9aa3ad"
_SIZE = (5.3, 3.3)
MATRIX_NAMES = {"embed": "embedding", "head": "LM head"}
_STYLE: Any = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": RULE, "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": RULE, "grid.alpha": 0.35, "grid.linewidth": 0.6,
    "legend.frameon": False, "legend.fontsize": 9, "lines.linewidth": 1.8, "figure.constrained_layout.use": True,
    "axes.axisbelow": True, "svg.hashsalt": "tiebeam",
}  # fmt: skip


def draw(document: dict[str, Any], directory: Path) -> dict[str, str]:
    """Draw every figure that the document has data for: files in `directory`, and inline SVG by name."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    inline = {}
    painters: dict[str, tuple[Any, tuple[float, float]]] = dict(_FIGURES)
    for name in ("pmi", "antisymmetric", *document["heat"]["paths"]):
        painters[f"heat-{name}"] = (partial(_heatmap, name=name), (5.3, 4.9))
    with matplotlib.rc_context(_STYLE):
        for name, (paint, size) in painters.items():
            figure = Figure(figsize=size)
            FigureCanvasAgg(figure)
            if paint(figure, document) is False:
                continue
            image = io.BytesIO()
            figure.savefig(image, format="png", dpi=200, facecolor="white", metadata={"Software": None})
            write_bytes(directory / f"{name}.png", image.getvalue(), durable=False)
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
            drawing = buffer.getvalue()
            write_text(directory / f"{name}.svg", _on_white(drawing), durable=False)
            inline[name] = _inlined(drawing, name)
    return inline


def _on_white(svg: str) -> str:
    """Add a white background to an SVG file."""
    return re.sub(r"(<svg[^>]*>)", r'\1\n <rect width="100%" height="100%" fill="white"/>', svg, count=1)


def _inlined(svg: str, name: str) -> str:
    """Prepare an SVG for the page: no prologue, no fixed size, ids prefixed with the figure's name."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', body))
    body = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", body)
    body = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", body)
    body = body.replace(INK, "currentColor").replace(INK.upper(), "currentColor")
    return body.replace("<svg", f'<svg role="img" aria-label="{name}"', 1).strip()


def _colours(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {v["name"]: (v["title"], v["colour"]) for v in document["variants"]}


def _held_out(figure: Any, document: dict[str, Any]) -> None:
    """Held-out curves, a panel for each width of the first vocabulary."""
    ladder = document["ladder"]
    panels = figure.subplots(1, len(ladder["widths"]), squeeze=False)[0]
    for axes, width in zip(panels, ladder["widths"], strict=True):
        labelled: set[str] = set()
        for cell in ladder["cells"]:
            if (cell["width"], cell["vocab"]) == (width, ladder["vocabs"][0]):
                title, colour = _colours(document)[cell["variant"]]
                x, y = zip(*((check["step"], check["bpb"]) for check in cell["checks"]), strict=True)
                axes.plot(x, y, color=colour, label=None if title in labelled else title, marker="o", markersize=2.5)
                labelled.add(title)
        axes.set_title(f"width {width}", fontsize=10)
        axes.set_xlabel("steps")
    panels[0].set_ylabel("held-out bits per byte")
    panels[0].legend()


def _gap(figure: Any, document: dict[str, Any]) -> bool | None:
    """The gap to the baseline at equal steps, with 95% intervals, against the width."""
    ladder = document["ladder"]
    if not ladder["gaps"]:
        return False
    axes = figure.subplots()
    colours = _colours(document)
    for name in dict.fromkeys(gap["variant"] for gap in ladder["gaps"]):
        title, colour = colours[name]
        found = [g for g in ladder["gaps"] if g["variant"] == name and g["vocab"] == ladder["vocabs"][0] and g["steps"]]
        x = [gap["width"] for gap in found]
        y = np.array([[gap["steps"][key] for key in ("ci_low", "difference", "ci_high")] for gap in found])
        error = [y[:, 1] - y[:, 0], y[:, 2] - y[:, 1]]
        axes.errorbar(x, y[:, 1], yerr=error, color=colour, marker="o", capsize=4, label=title)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ladder["widths"], [str(width) for width in ladder["widths"]])
    axes.set_xlabel("width")
    axes.set_ylabel(f"minus {colours[ladder['baseline']][0]}, bits per byte")
    axes.legend()
    return None


def _bands(figure: Any, document: dict[str, Any]) -> bool | None:
    """Loss of each variant minus the first one's, by token frequency."""
    titles = [v["name"] for v in document["variants"]]
    if len(titles) < 2:
        return False
    axes = figure.subplots()
    mean = {
        name: np.mean([[b["nats"] for b in r["bands"]] for r in document["runs"] if r["variant"] == name], axis=0)
        for name in titles
    }
    base, width = mean[titles[0]], 0.8 / (len(titles) - 1)
    at = np.arange(len(base))
    for i, name in enumerate(titles[1:]):
        title, colour = _colours(document)[name]
        axes.bar(at + (i - (len(titles) - 2) / 2) * width, mean[name] - base, width * 0.92, color=colour, label=title)
    axes.axhline(0, color=INK, linewidth=0.8)
    sizes = [b["tokens"] for b in document["runs"][0]["bands"]]
    axes.set_xticks(at, [f"{n:,}" for n in sizes])
    axes.set_xlabel("tokens per fifth of the text, frequent to rare")
    axes.set_ylabel(f"loss minus {_colours(document)[titles[0]][0]}, nats")
    axes.legend()
    return None


def _heatmap(figure: Any, document: dict[str, Any], name: str) -> None:
    axes = figure.subplots()
    heat = document["heat"]
    text = np.array(heat["pmi"])
    matrix = {"pmi": text, "antisymmetric": (text - text.T) / 2}.get(name)
    if matrix is None:
        matrix = np.array(heat["paths"][name])
    limit = float(np.quantile(np.abs(matrix), 0.98)) or 1.0
    shown = axes.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    labels = [_plain(label) for label in heat["labels"]]
    axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.grid(visible=False)
    axes.set_xlabel("next token")
    axes.set_ylabel("token")
    figure.colorbar(shown, ax=axes, shrink=0.8, aspect=30)


def _plain(label: str) -> str:
    """Escape $, which matplotlib would read as math."""
    return label.replace("$", r"\$") or "''"


_FIGURES: dict[str, tuple[Any, tuple[float, float]]] = {
    "held-out": (_held_out, (8.4, 3.1)),
    "gap": (_gap, _SIZE),
    "bands": (_bands, _SIZE),
}
