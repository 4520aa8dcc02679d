"""Figures of the report (matplotlib): SVG and PNG files, and the same drawings as inline SVG for the page.

Each is narrow enough for a phone. Inline, the text colour becomes `currentColor`, so that it follows the page's light
or dark theme; the files have a white background.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
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


def _runs_with_labels(document: dict[str, Any]) -> list[tuple[dict[str, Any], str, str | None]]:
    """Rows of (run, colour, legend label); only the first run of a variant has a label."""
    colours, seen, rows = _colours(document), set(), []
    for run in document["runs"]:
        title, colour = colours[run["variant"]]
        rows.append((run, colour, None if run["variant"] in seen else title))
        seen.add(run["variant"])
    return rows


def _held_out(figure: Any, document: dict[str, Any]) -> None:
    axes = figure.subplots()
    by_time = document["match"] == "time"
    for run, colour, label in _runs_with_labels(document):
        x = [p["seconds"] if by_time else p["step"] for p in run["val_curve"]]
        y = [p["val_bpb"] for p in run["val_curve"]]
        axes.plot(x, y, color=colour, label=label, marker="o", markersize=3.5)
        axes.plot(x[-1:], y[-1:], color=colour, marker="o", markersize=7)
    axes.set_xlabel("training time, s" if by_time else "steps")
    axes.set_ylabel("held-out bits per byte")
    axes.legend()


def _training(figure: Any, document: dict[str, Any]) -> bool | None:
    axes = figure.subplots()
    by_time = document["match"] == "time"
    if all(len(run["curve"]) < 2 for run in document["runs"]):
        return False
    for run, colour, label in _runs_with_labels(document):
        x = [p["seconds"] if by_time else p["step"] for p in run["curve"]]
        _plot_smoothed(axes, x, [p["loss"] for p in run["curve"]], colour, label)
    axes.set_xlabel("training time, s" if by_time else "steps")
    axes.set_ylabel("training loss, nats per token")
    axes.legend()
    return None


def _size_and_loss(figure: Any, document: dict[str, Any]) -> None:
    axes = figure.subplots()
    for v in document["variants"]:
        for key, bpb, fill in (("disk_bytes", "val_bpb", True), ("packed_bytes", "packed_bpb", False)):
            axes.errorbar(
                v[key] / 1e6, v[bpb], yerr=v[f"{bpb}_error"] or None, color=v["colour"], marker="o", markersize=8,
                capsize=3, markerfacecolor=v["colour"] if fill else "none", linestyle="none",
                label=v["title"] if fill else None,
            )  # fmt: skip
        axes.plot(
            [v["disk_bytes"] / 1e6, v["packed_bytes"] / 1e6], [v["val_bpb"], v["packed_bpb"]], color=v["colour"],
            linewidth=0.8, linestyle=":",
        )  # fmt: skip
    axes.set_xlabel("size, MB (filled: checkpoint, open: packed)")
    axes.set_ylabel("held-out bits per byte")
    axes.set_xlim(left=0)
    axes.margins(y=0.25)
    axes.legend()


def _gradient(figure: Any, document: dict[str, Any]) -> bool | None:
    axes = figure.subplots()
    if not any(run["gradient"] for run in document["runs"]):
        return False
    for run, colour, label in _runs_with_labels(document):
        if run["gradient"]:
            x = [100 * p["done"] for p in run["gradient"]]
            _plot_smoothed(axes, x, [100 * p["head_share"] for p in run["gradient"]], colour, label)
    axes.axhline(50, color=RULE, linewidth=1)
    axes.set_ylim(0, 100)
    axes.set_xlabel("training progress, %")
    axes.set_ylabel("LM head share of gradient norm, %")
    axes.legend()
    return None


def _matrices_of_first_seed(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """(run, "embed" or "head", line style); a tied run has one matrix."""
    for run in document["runs"]:
        if run["seed"] == document["seeds"][0]:
            title, colour = _colours(document)[run["variant"]]
            for matrix, line in (("embed", "-"),) if run["tied_at_end"] else (("embed", "-"), ("head", "--")):
                label = title if run["tied_at_end"] else f"{title}, {MATRIX_NAMES[matrix]}"
                yield run, matrix, {"linestyle": line, "color": colour, "label": label}


def _plot_smoothed(axes: Any, x: list[float], y: list[float], colour: str, label: str | None) -> None:
    """Plot the values faintly and their running mean in bold."""
    width = max(1, len(y) // 40)
    axes.plot(x, y, color=colour, alpha=0.18, linewidth=0.8)
    axes.plot(x[width - 1 :], np.convolve(y, np.ones(width) / width, "valid"), color=colour, label=label)


def _spectrum(figure: Any, document: dict[str, Any]) -> None:
    axes = figure.subplots()
    for run, matrix, style in _matrices_of_first_seed(document):
        cumulative = 100 * np.cumsum(run["spectrum"][matrix])
        axes.plot(np.arange(1, len(cumulative) + 1), cumulative, **style)
    axes.set_xlabel("rank")
    axes.set_ylabel("cumulative squared singular values, %")
    axes.set_ylim(0, 102)
    axes.legend(loc="lower right")


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


def _norms(figure: Any, document: dict[str, Any]) -> None:
    axes = figure.subplots()
    for run, matrix, style in _matrices_of_first_seed(document):
        rows = run["norms"]["rows"]
        axes.plot([r["count"] for r in rows], [r[matrix] for r in rows], marker=".", **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("count in training text")
    axes.set_ylabel("mean row norm")
    axes.legend()


def _bigrams(figure: Any, document: dict[str, Any]) -> None:
    axes = figure.subplots()
    found = document["bigrams"]
    rows = [("unigram", found["unigram"]["bits"], RULE)]
    for form, fit in found["forms"].items():
        rows.append((fit["name"], fit["bits"], {"EE": "#2a86c8", "EW": "#d55e00"}.get(form, "#6f7f8f")))
    rows.append(("smoothed bigram", found["smoothed_bigram"]["bits"], RULE))
    for i, (_, bits, colour) in enumerate(rows):
        axes.barh(-i, bits, color=colour, height=0.68)
        axes.text(bits, -i, f" {bits:.2f}", va="center", fontsize=9)
    axes.set_yticks([-i for i in range(len(rows))], [name for name, _, _ in rows])
    axes.set_xlim(0, 1.13 * max(bits for _, bits, _ in rows))
    axes.set_xlabel("held-out bits per token")
    axes.grid(axis="y", visible=False)


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
    "held-out": (_held_out, _SIZE),
    "training": (_training, _SIZE),
    "plane": (_size_and_loss, _SIZE),
    "gradient": (_gradient, _SIZE),
    "bands": (_bands, _SIZE),
    "norms": (_norms, _SIZE),
    "spectrum": (_spectrum, _SIZE),
    "bigrams": (_bigrams, _SIZE),
}
