"""report.html: one self-contained file that opens with the answer and draws its charts itself.

It makes no requests. Its only script is the one in static/, whose digest the Content-Security-Policy names, so that no
text in the page can run as code. The studio shows the same charts from the same files.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tiebeam._html import escape
from tiebeam.budget import human_bytes
from tiebeam.compare import report_exhibits as exhibits
from tiebeam.compare.report_answers import answer_table, claims, plan_answer, variant_gaps, verdict_list
from tiebeam.compare.report_data import chart_data
from tiebeam.compare.report_sweep import sweep_section

STATIC = Path(__file__).parent / "static"
_SCRIPTS = ("axes.js", "curves.js", "curve_controls.js", "report.js")
_STYLES = ("report.css", "curves.css")


def page(document: dict[str, Any], figures: dict[str, str]) -> str:
    """Build the page from the document of report.json and the inline figures."""
    title = _title(document)
    body = [
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="about">{escape(_about(document))}</p>',
        verdict_list(document),
        "</header>\n<main>",
        answer_table(document),
        *plan_answer(document),
        *_charts(document),
        *variant_gaps(document),
        *claims(document),
        *sweep_section(document),
        "<h2>Models</h2>",
        exhibits.ladder_table(document),
        exhibits.variants(document),
        *exhibits.matrices(document, figures),
        *exhibits.direct_path(document, figures),
        *exhibits.samples(document),
        *exhibits.settings(document),
        f"</main>\n<footer>Written by tiebeam {escape(document['tiebeam'])}. report.json has every number.</footer>",
    ]
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    )
    styles = "".join((STATIC / name).read_text() for name in _STYLES)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)} · tiebeam</title>\n<style>\n{styles}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + f'\n<script type="application/json" id="data">{_data(document)}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def _charts(document: Mapping[str, Any]) -> Iterable[str]:
    held_out = document["ladder"]["held_out"]
    yield "<h2>Curves</h2>"
    yield (
        f"<p>Held-out loss on the same {held_out['tokens']:,} tokens of {held_out['documents']:,} documents at every "
        "check. Time is each run's own training time, without checks and waiting. For values, point at a curve, or "
        "focus a chart and use the arrow keys.</p>"
    )
    yield "<noscript><p>The charts need JavaScript. report.json has their numbers.</p></noscript>"
    yield '<div class="grid three" data-plot="held-out"></div>\n<div class="grid three" data-plot="training"></div>'
    yield '<h2>The gap</h2>\n<div class="grid three" data-plot="ladder"></div>'


def _title(document: Mapping[str, Any]) -> str:
    names = [v["title"] for v in document["variants"]]
    return (
        "Tied vs untied embeddings" if names[:2] == ["tied", "untied"] else f"Comparison of {' and '.join(names[:2])}"
    )


def _about(document: Mapping[str, Any]) -> str:
    """'Widths 64, 128 and 256; vocabulary 2,048; seed 0; trained on 11 MB of text.'"""
    ladder, corpus = document["ladder"], document["corpus"]
    widths, vocabs = ladder["widths"], [f"{v:,}" for v in ladder["vocabs"]]
    seeds = document["seeds"]
    return (
        f"{'Widths' if len(widths) > 1 else 'Width'} {_listed(widths)}, "
        f"{'vocabularies' if len(vocabs) > 1 else 'vocabulary'} {_listed(vocabs)}, "
        f"{'seeds' if len(seeds) > 1 else 'seed'} {_listed(seeds)}; trained on "
        f"{human_bytes(corpus['train']['bytes'])} of text."
    )


def _listed(values: Iterable[Any]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last


def _data(document: Mapping[str, Any]) -> str:
    """JSON that cannot end its script element."""
    text = json.dumps(chart_data(document), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _script() -> str:
    """The modules of the page as one: imports between them are dropped, because they share one scope here."""
    text = "\n".join((STATIC / name).read_text() for name in _SCRIPTS)
    return re.sub(r"^import .*\n", "", text, flags=re.MULTILINE)
