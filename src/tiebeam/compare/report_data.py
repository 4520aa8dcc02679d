"""The numbers that report.html draws: what the charts need of report.json, as short rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from tiebeam._visible import visible
from tiebeam.compare.figures import MATRIX_NAMES
from tiebeam.compare.report_sweep import sweep_data

_MOST_POINTS = 1000  # of one curve
_DASHES = (None, "7 4", "2 4", "9 3 2 3", "4 2", "12 4")


def chart_data(document: Mapping[str, Any]) -> dict[str, Any]:
    """Curves and gaps of the ladder, and the vocabulary matrices of the widest models.

    Rows of a held-out or training curve are [step, seconds, tokens, value]; a gap is [difference, low, high].
    """
    ladder = document["ladder"]
    return {
        "variants": {
            v["name"]: {"title": visible(v["title"]), "colour": v["colour"], "dash": _DASHES[i % len(_DASHES)]}
            for i, v in enumerate(document["variants"])
        },
        "baseline": ladder["baseline"],
        "seeds": len(document["seeds"]),
        "cells": [_cell(cell) for cell in ladder["cells"]],
        "sizes": _sizes(ladder["cells"]),
        "gaps": [_gap(gap) for gap in ladder["gaps"]],
        "headline": document["verdict"]["second"],
        "gaps_while_training": _gaps_while_training(ladder, document["verdict"]["second"]),
        "gaps_of": list(dict.fromkeys(gap["variant"] for gap in ladder["gaps"])),
        "sweep": sweep_data(document),
        "matrices": _matrices(document),
    }


def _cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{key: cell[key] for key in ("variant", "width", "vocab", "seed")},
        "checks": _rows(cell["checks"], "bpb"),
        "curve": _rows(cell["curve"], "loss"),
    }


def _rows(points: Sequence[Mapping[str, Any]], key: str) -> list[list[Any]]:
    every = -(-len(points) // _MOST_POINTS) or 1
    kept = [p for i, p in enumerate(points) if i % every == 0 or i == len(points) - 1]
    return [[p["step"], p["seconds"], p["tokens"], p[key]] for p in kept]


def _sizes(cells: Sequence[Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    """For each variant: [parameters, packed bytes, bits per byte, width], with the mean over seeds."""
    groups: dict[str, dict[tuple[int, int], list[Mapping[str, Any]]]] = {}
    for cell in cells:
        groups.setdefault(cell["variant"], {}).setdefault((cell["width"], cell["vocab"]), []).append(cell)
    return {
        name: [
            [*(_mean([c[key] for c in alike]) for key in ("params", "packed_bytes", "bpb")), width]
            for (width, _), alike in shapes.items()
        ]
        for name, shapes in groups.items()
    }


def _gap(gap: Mapping[str, Any]) -> dict[str, Any]:
    found = {"variant": gap["variant"], "width": gap["width"], "share": gap["head_share"], "vocab": gap["vocab"]}
    for question in ("steps", "time"):
        answer = gap[question]
        found[question] = answer and [answer["difference"], answer["ci_low"], answer["ci_high"]]
    return found


def _gaps_while_training(ladder: Mapping[str, Any], second: str) -> list[dict[str, Any]]:
    """For each shape: [step, bits per byte of `second` minus the baseline], with the mean over seeds."""
    found: dict[tuple[int, int], dict[str, dict[int, list[float]]]] = {}
    for cell in ladder["cells"]:
        at = found.setdefault((cell["width"], cell["vocab"]), {}).setdefault(cell["variant"], {})
        for check in cell["checks"]:
            at.setdefault(check["step"], []).append(check["bpb"])
    several = len({vocab for _, vocab in found}) > 1
    gaps = []
    for (width, vocab), sides in found.items():
        base, other = sides.get(ladder["baseline"], {}), sides.get(second, {})
        points = [[step, _mean(other[step]) - _mean(base[step])] for step in sorted(set(base) & set(other))]
        name = f"width {width}" + (f", {vocab:,} tokens" if several else "")
        gaps.append({"name": name, "points": points})
    return [gap for gap in gaps if gap["points"] and second != ladder["baseline"]]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _matrices(document: Mapping[str, Any]) -> dict[str, Any]:
    titles = {v["name"]: visible(v["title"]) for v in document["variants"]}
    found: dict[str, list[Any]] = {"gradient": [], "spectrum": [], "norms": []}
    for run in document["runs"]:
        if run["seed"] != document["seeds"][0]:
            continue
        gradient = [[p["step"], p["head_share"]] for p in run["gradient"]]
        found["gradient"].append({"variant": run["variant"], "points": gradient})
        for matrix in matrices_of(run):
            title = titles[run["variant"]]
            name = title if run["tied_at_end"] else f"{title}, {MATRIX_NAMES[matrix]}"
            one = {"variant": run["variant"], "matrix": matrix, "name": name}
            found["spectrum"].append({**one, "values": list(accumulate(run["spectrum"][matrix]))})
            norms = [[row["count"], row[matrix]] for row in run["norms"]["rows"]]
            found["norms"].append({**one, "points": norms})
    return found


def matrices_of(run: Mapping[str, Any]) -> tuple[str, ...]:
    """The vocabulary matrices of a run: one if it is tied at its end."""
    return ("embed",) if run["tied_at_end"] else ("embed", "head")
