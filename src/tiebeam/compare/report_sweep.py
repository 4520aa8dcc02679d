"""The learning rate sweep in report.html: a chart for each rate, the best ones, and what half and double cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tiebeam._html import escape
from tiebeam._visible import visible
from tiebeam.compare.report_tables import signed, table

_ROLES = {"table": "shared matrix", "embed": "embedding", "head": "LM head"}


def sweep_section(document: Mapping[str, Any]) -> Iterable[str]:
    sweep = document.get("sweep")
    if not sweep:
        return
    titles = {v["name"]: v["title"] for v in document["variants"]}
    yield "<h2>Learning rates</h2>"
    yield (
        f"<p>Each candidate was trained for {sweep['steps']:,} steps with its full schedule; the runs above use the "
        "best of each row.</p>"
    )
    yield '<div class="grid three" data-plot="sweep"></div>'
    rows = [
        [
            escape(f"{titles.get(row['variant'], row['variant'])}, {_ROLES.get(row['role'], row['role'])}"),
            f"{row['width']:,}",
            f"{row['best']:g}" + (" (edge of the grid)" if row["at_edge"] else ""),
            _cost(row["half_costs"]),
            _cost(row["double_costs"]),
        ]
        for row in sweep["rows"]
    ]
    heads = ["Peak learning rate", "width", "best", "half of it costs", "double costs"]
    yield table(heads, rows, caption="Costs are held-out bits per byte")
    yield "".join(f"<p>{escape(note)}.</p>" for note in sweep["notes"])


def sweep_data(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For the charts: the candidates of each rate, [rate, bits per byte], by width."""
    titles = {v["name"]: visible(v["title"]) for v in document["variants"]}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in (document.get("sweep") or {"rows": ()})["rows"]:
        name = f"{titles.get(row['variant'], row['variant'])}, {_ROLES.get(row['role'], row['role'])}"
        one = found.setdefault((row["variant"], row["role"]), {"variant": row["variant"], "name": name, "widths": []})
        points = [[rate, bpb] for rate, bpb in zip(row["rates"], row["bpb"], strict=True) if bpb is not None]
        one["widths"].append({"width": row["width"], "vocab": row["vocab"], "points": points})
    return list(found.values())


def _cost(value: float | None) -> str:
    return "not tried" if value is None else signed(value)
