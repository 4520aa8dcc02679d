"""report.html: one self-contained file without scripts or requests, for light and dark themes, phones and print."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tiebeam._html import escape
from tiebeam.budget import human, human_bytes
from tiebeam.compare.figures import MATRIX_NAMES

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6570;--rule:#d9dee3;--paper:#fff;--card:#f6f8fa;--tied:#2a86c8;
--untied:#d55e00}
@media (prefers-color-scheme:dark){:root{--ink:#e7ebef;--soft:#9aa6b2;--rule:#343c45;--paper:#12161a;--card:#1a2026;
--tied:#55a8e2;--untied:#f0843c}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.1rem 4rem;max-width:68rem;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.05rem;font-weight:600;color:var(--soft);margin:0 0 .6rem}
h2{font-size:1.25rem;margin:2.6rem 0 .4rem}
p{margin:.4rem 0;max-width:46rem}
.verdict{font-size:1.5rem;line-height:1.32;font-weight:600;max-width:none;margin:.2rem 0 .7rem;text-wrap:pretty}
.certainty{font-size:1.05rem;color:var(--soft);max-width:52rem}
.soft,figcaption,.note{color:var(--soft);font-size:.9rem}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1.1rem;
margin:.9rem 0;align-items:start}
figure{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:.7rem .7rem .5rem;
break-inside:avoid}
figure svg{width:100%;height:auto;display:block;font-family:inherit}
figcaption{margin:.45rem .25rem .15rem}
.wide{overflow-x:auto;margin:.9rem 0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.94rem}
th,td{padding:.38rem .7rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{font-weight:600;color:var(--soft)}
th:first-child,td:first-child{text-align:left;padding-left:0}
.dot{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin-right:.5em}
pre{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:.8rem;overflow-x:auto;
font-size:.86rem;line-height:1.45;white-space:pre-wrap;overflow-wrap:anywhere}
pre b{font-weight:400;color:var(--soft)}
details{margin:.7rem 0}summary{cursor:pointer;color:var(--soft)}
@media (max-width:40rem){body{padding-top:1.2rem}.verdict{font-size:1.22rem}h2{font-size:1.12rem}}
@media print{:root{--ink:#000;--soft:#444;--rule:#bbb;--paper:#fff;--card:#fff}
body{max-width:none;padding:0;font-size:11pt}
figure{border-color:#ccc}.grid{grid-template-columns:1fr 1fr}details>*{display:block}h2{break-after:avoid}}
"""


_BARS = "The same as bars: blue is tied, orange untied, grey the forms between and the references."


def page(document: dict[str, Any], figures: dict[str, str]) -> str:
    """Build the page from the document of report.json and the inline figures."""
    verdict = document["verdict"]
    first, *others = verdict["sentences"]
    parts = [
        "<h1>Tied vs untied embeddings</h1>",
        f'<p class="verdict">{escape(first)}</p>',
        *(f'<p class="certainty">{escape(sentence)}</p>' for sentence in others),
        _variants(document),
        *_curves(document, figures),
        *_matrices(document, figures),
        *_direct_path(document, figures),
        *_samples(document),
        *_settings(document),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n<link rel="icon" href="data:,">\n'
        f"<title>Tied vs untied embeddings · tiebeam</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def _variants(document: dict[str, Any]) -> str:
    rows = []
    for v in document["variants"]:
        rows.append(
            [
                f'<span class="dot" style="background:{escape(v["colour"])}"></span>{escape(v["title"])}',
                _plus_minus(v["val_bpb"], v["val_bpb_error"]),
                f"{v['params']:,}",
                human_bytes(round(v["disk_bytes"])),
                human_bytes(round(v["packed_bytes"])),
                _plus_minus(v["packed_bpb"], v["packed_bpb_error"]),
                f"{v['steps']:,.0f}",
                f"{v['tokens_per_second']:,.0f}" if v["tokens_per_second"] else "–",
                human_bytes(round(v["peak_bytes"])) if v["peak_bytes"] is not None else "–",
            ]
        )
    heads = ["", "bits per byte", "parameters", "on disk", "packed", "packed bpb", "steps", "tokens/s", "peak memory"]
    notes = [f"{escape(v['title'])}: {escape(v['note'])}." for v in document["variants"] if v["note"]]
    if any(v["name"] == "bridge" for v in document["variants"]):
        notes.append(
            "Standard checkpoints cannot store a bridge: on disk it is folded into a separate LM head, so the file is "
            "larger than the parameter count suggests."
        )
    errors = "± is the standard error over seeds. " if len(document["seeds"]) > 1 else ""
    notes.append(
        f"{errors}Packed: matrices in int8, embedding and LM head in fp16, compressed; its loss is measured after "
        "unpacking. Peak memory is the memory growth of each run's subprocess."
    )
    return _table(heads, rows) + f'<p class="note">{" ".join(notes)}</p>'


def _curves(document: dict[str, Any], figures: dict[str, str]) -> Iterable[str]:
    equal = {
        "time": "All runs had the same training time, so faster ones took more steps.",
        "steps": "All runs took the same number of steps on the same batches.",
        "params": f"All models were matched to the parameter count of the {document['anchor']} variant.",
    }[document["match"]]
    yield "<h2>Training</h2>"
    yield f"<p>{escape(equal)} Every point is measured on the same held-out text.</p>"
    yield _grid(
        figures,
        {
            "held-out": "Held-out bits per byte during training.",
            "plane": "Size and held-out loss, as checkpoint and packed. Lower left is better.",
            "training": "Training loss; the bold line is a running mean.",
            "bands": _bands_caption(document),
        },
    )


def _bands_caption(document: dict[str, Any]) -> str:
    found = document["runs"][0]["bands"]
    return (
        "Difference in loss by token frequency. Below zero is better than "
        f"{document['variants'][0]['title']}. Each group is about a fifth of the text: {found[0]['tokens']:,} distinct "
        f"tokens in the most frequent group, {found[-1]['tokens']:,} in the rarest."
    )


def _matrices(document: dict[str, Any], figures: dict[str, str]) -> Iterable[str]:
    yield "<h2>Embedding and LM head</h2>"
    drift = f"<div><p>Change of each matrix during training:</p>{_drift(document)}</div>"
    yield _grid(
        figures,
        {
            "gradient": "LM head share of the gradient: the norm of its part over the sum of both norms.",
            "spectrum": "Squared singular values, cumulative: how much of each matrix its leading directions hold.",
            "norms": "Row norms by token frequency.",
        },
        drift,
    )
    if document["alignment"]:
        rows, heads = [], ["", "linear map, held out", "best rotation", "shared neighbours"]
        mean = {
            which: {
                key: sum(a[which][key] for a in document["alignment"]) / len(document["alignment"])
                for key in ("map_cosine", "procrustes", "knn")
            }
            for which in ("embed", "head", "each_other")
        }
        names = {
            "embed": "tied matrix and untied embedding",
            "head": "tied matrix and untied LM head",
            "each_other": "untied embedding and untied LM head",
        }
        for which, name in names.items():
            m = mean[which]
            rows.append([name, f"{m['map_cosine']:.3f}", f"{m['procrustes']:.3f}", f"{100 * m['knn']:.1f}%"])
        yield f"<p>{escape(_which_is_more_similar(mean))}</p>"
        yield _table(heads, rows)
        first = document["alignment"][0]
        yield (
            f'<p class="note">Over {first["rows"]:,} centred rows. Cosine through a map fitted on other tokens; '
            f"overlap with the best rotation; fraction of the ten nearest tokens that are the same (random: "
            f"{100 * first['knn_by_chance']:.1f}%).</p>"
        )


def _drift(document: dict[str, Any]) -> str:
    rows = []
    for run in document["runs"]:
        if run["seed"] == document["seeds"][0]:
            for matrix in ("embed",) if run["tied_at_end"] else ("embed", "head"):
                d = run["drift"][matrix]
                title = next(v["title"] for v in document["variants"] if v["name"] == run["variant"])
                rows.append(
                    [
                        escape(title if run["tied_at_end"] else f"{title}, {MATRIX_NAMES[matrix]}"),
                        f"{d['relative']:.1f}×",
                        f"{d['cosine']:.3f}",
                        f"{d['norm_before']:.2f} → {d['norm_after']:.2f}",
                    ]
                )
    return _table(["", "relative change", "cosine", "norm"], rows)


def _which_is_more_similar(mean: dict[str, dict[str, float]]) -> str:
    """Which matrix of the untied model the tied one resembles, if the three measures agree."""
    wins = [mean["head"][key] - mean["embed"][key] for key in ("map_cosine", "procrustes", "knn")]
    if all(w > 0 for w in wins):
        return (
            "By all three measures the tied matrix is more similar to the untied LM head than to the untied embedding."
        )
    if all(w < 0 for w in wins):
        return (
            "By all three measures the tied matrix is more similar to the untied embedding than to the untied LM head."
        )
    return "The three measures disagree on whether the tied matrix is more similar to the untied embedding or LM head."


def _direct_path(document: dict[str, Any], figures: dict[str, str]) -> Iterable[str]:
    found = document["bigrams"]
    among = f"{found['vocab']:,} tokens"
    if found["top"] is not None and found["vocab"] == found["top"] + 1:
        among = f"the {found['top']:,} most frequent tokens (all others count as one)"
    yield "<h2>The direct path: a model without layers</h2>"
    yield (
        f"<p>Token → embedding → LM head, without layers, fitted to the bigrams of this text at width "
        f"{found['dim']} over {among} and evaluated on held-out documents:</p>"
    )
    rows = [["unigram", found["unigram"]], *([f["name"], f] for f in found["forms"].values())]
    rows.append(["smoothed bigram", found["smoothed_bigram"]])
    body = [[escape(str(name)), f"{fit['bits']:.3f}", f"{fit['params']:,}"] for name, fit in rows]
    b = found["bounds"]
    bounds = _table(
        [f"best matrix of rank {b['dim']}", "energy not captured"],
        [
            ["any", f"{100 * b['any']:.1f}%"],
            ["symmetric", f"{100 * b['symmetric']:.1f}%"],
            ["positive semidefinite", f"{100 * b['semidefinite']:.1f}%"],
        ],
    )
    table = _table(["", "bits per token", "parameters"], body)
    bars = f"<figure>{figures.get('bigrams', '')}<figcaption>{escape(_BARS)}</figcaption></figure>"
    yield f'<div class="grid"><div>{table}{bounds}</div>{bars}</div>'
    yield "".join(f"<p>{escape(sentence)}</p>" for sentence in found["says"])
    captions = {
        "heat-pmi": "PMI of token pairs in this text: red if a pair is more frequent than by chance, blue if less. "
        "Each row shows the tokens that follow the row token.",
        "heat-antisymmetric": "Its antisymmetric part, which a symmetric (tied) direct path cannot represent: that a "
        "comes before b and not after.",
    }
    for v in document["variants"]:
        path = f"heat-{v['name']}"
        captions[path] = f"Direct-path logit of the column token after the row token, {v['title']}."
    yield _grid(figures, captions)


def _samples(document: dict[str, Any]) -> Iterable[str]:
    yield "<h2>Samples</h2>"
    yield '<p class="note">The same held-out prompt (grey), one continuation each at temperature 0.7.</p>'
    titles = {v["name"]: (v["title"], v["colour"]) for v in document["variants"]}
    for sample in document["samples"]:
        title, colour = titles[sample["variant"]]
        yield f'<p><span class="dot" style="background:{escape(colour)}"></span>{escape(title)}</p>'
        if sample.get("note"):
            yield f'<p class="note">{escape(sample["note"])}</p>'
        else:
            yield f"<pre><b>{escape(sample['prompt'])}</b>{escape(sample['text'])}</pre>"


def _settings(document: dict[str, Any]) -> Iterable[str]:
    corpus, machine = document["corpus"], document["machine"]
    yield "<h2>Setup</h2>"
    seeds = ", ".join(map(str, document["seeds"]))
    yield (
        f"<p>Text: {human_bytes(corpus['train']['bytes'])} in {corpus['train']['documents']:,} documents for training, "
        f"{human_bytes(corpus['val']['bytes'])} in {corpus['val']['documents']:,} held out. Vocabulary "
        f"{corpus['vocab']:,}; {'seed' if len(document['seeds']) == 1 else 'seeds'} {seeds}. Text digest "
        f"{escape(str(corpus['digest'])[:12])}.</p>"
    )
    yield (
        f"<p>tiebeam {escape(document['tiebeam'])}, torch {escape(machine['torch'])}, Python "
        f"{escape(machine['python'])} on {escape(machine['system'])} {escape(machine['processor'])}, "
        f"{machine['cores']} cores, {machine['threads']} threads.</p>"
    )
    yield f"<p>Command:</p><pre>{escape(document['command'])}</pre>"
    for run in document["runs"]:
        if run["seed"] == document["seeds"][0]:
            shown = escape(json.dumps(run["settings"], indent=2))
            yield (
                f"<details><summary>All settings of {escape(run['name'])}, {human(run['params'])} parameters</summary>"
                f"<pre>{shown}</pre></details>"
            )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Build a table; cells are HTML, headings are text."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _grid(figures: dict[str, str], captions: dict[str, str], last: str = "") -> str:
    cells = [
        f"<figure>{figures[name]}<figcaption>{escape(caption)}</figcaption></figure>"
        for name, caption in captions.items()
        if name in figures
    ]
    return f'<div class="grid">{"".join(cells)}{last}</div>'


def _plus_minus(value: float, error: float | None) -> str:
    return f"{value:.4f}" + (f" ± {error:.4f}" if error is not None else "")
