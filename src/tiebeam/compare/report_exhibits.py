"""Exhibits of report.html after the answer: variants, vocabulary matrices, the direct path, samples, the setup."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tiebeam._html import escape
from tiebeam.budget import human, human_bytes
from tiebeam.compare.figures import MATRIX_NAMES
from tiebeam.compare.report_data import matrices_of
from tiebeam.compare.report_tables import dot, plus_minus, table


def ladder_table(document: dict[str, Any]) -> str:
    """Every variant at every width: the numbers that the answers compare, as the mean over seeds."""
    colours = {v["name"]: (v["title"], v["colour"]) for v in document["variants"]}
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for cell in document["ladder"]["cells"]:
        groups.setdefault((cell["variant"], cell["width"], cell["vocab"]), []).append(cell)
    vocabs = len(document["ladder"]["vocabs"]) > 1
    rows = []
    for (name, width, vocab), alike in groups.items():
        title, colour = colours[name]
        bpb, steps, seconds, speed = (
            sum(cell[key] for cell in alike) / len(alike) for key in ("bpb", "steps", "seconds", "tokens_per_second")
        )
        shape = [f"{width:,}", *([f"{vocab:,}"] if vocabs else [])]
        sizes = [f"{alike[0]['params']:,}", human_bytes(round(alike[0]["packed_bytes"]))]
        rates = escape(alike[0]["peak_rates"].partition(", matrices")[0])  # those of the layers are all the same
        last = [f"{steps:,.0f}", f"{seconds:,.0f}", f"{speed:,.0f}", f'<td class="says">{rates}</td>']
        rows.append([f"{dot(colour)}{escape(title)}", *shape, f"{bpb:.4f}", *sizes, *last])
    heads = ["", "width", *(["vocabulary"] if vocabs else []), "bits per byte", "parameters", "packed", "steps"]
    return table([*heads, "seconds", "tokens/s", "peak learning rates"], rows)


def variants(document: dict[str, Any]) -> str:
    """The widest models, measured on the whole held-out text."""
    memory = any(v["peak_bytes"] is not None for v in document["variants"])
    rows = []
    for v in document["variants"]:
        peak = human_bytes(round(v["peak_bytes"])) if v["peak_bytes"] is not None else "–"
        rows.append(
            [
                f"{dot(v['colour'])}{escape(v['title'])}",
                plus_minus(v["val_bpb"], v["val_bpb_error"]),
                plus_minus(v["packed_bpb"], v["packed_bpb_error"]),
                f"{v['params']:,}",
                human_bytes(round(v["disk_bytes"])),
                human_bytes(round(v["packed_bytes"])),
                *([peak] if memory else []),
            ]
        )
    heads = ["", "bits per byte", "packed bpb", "parameters", "on disk", "packed"] + ["peak memory"] * memory
    notes = [f"{escape(v['title'])}: {escape(v['note'])}." for v in document["variants"] if v["note"]]
    if any(v["name"] == "bridge" for v in document["variants"]):
        notes.append(
            "Standard checkpoints cannot store a bridge: on disk it is folded into a separate LM head, so the file is "
            "larger than the parameter count suggests."
        )
    errors = "± is the standard error over seeds. " if len(document["seeds"]) > 1 else ""
    notes.append(
        f"{errors}Packed: matrices in int8, embedding and LM head in fp16, compressed; its loss is measured after "
        "unpacking." + " Peak memory is the memory growth of each run's subprocess." * memory
    )
    caption = (
        f"The models of {_shape(document)} on all {document['runs'][0]['val_tokens']:,} held-out tokens. The answers "
        f"above use {document['ladder']['held_out']['tokens']:,} of them, the same at every check."
    )
    return table(heads, rows, caption=caption) + f'<p class="note">{" ".join(notes)}</p>'


def _bands_caption(document: dict[str, Any]) -> str:
    found = document["runs"][0]["bands"]
    return (
        "Difference in loss by token frequency. Below zero is better than "
        f"{document['variants'][0]['title']}. Each group is about a fifth of the text: {found[0]['tokens']:,} distinct "
        f"tokens in the most frequent group, {found[-1]['tokens']:,} in the rarest."
    )


def matrices(document: dict[str, Any], figures: dict[str, str]) -> Iterable[str]:
    yield "<h2>Embedding and LM head</h2>"
    yield f"<p>The vocabulary matrices of the models above at {_shape(document)}.</p>"
    yield '<div class="grid three" data-plot="matrices"></div>'
    drift = f"<h3>Change of each matrix during training</h3>{_drift(document)}"
    yield _grid(figures, {"bands": _bands_caption(document)}, f'<div class="panel">{drift}</div>')
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
        yield table(heads, rows)
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
            for matrix in matrices_of(run):
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
    return table(["", "relative change", "cosine", "norm"], rows)


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


def direct_path(document: dict[str, Any], figures: dict[str, str]) -> Iterable[str]:
    found = document["bigrams"]
    among = f"{found['vocab']:,} tokens"
    if found["top"] is not None and found["vocab"] == found["top"] + 1:
        among = f"the {found['top']:,} most frequent tokens (all others count as one)"
    yield "<h2>The direct path: a model without layers</h2>"
    yield (
        f"<p>Token → embedding → LM head, without layers, fitted to the bigrams of this text at width "
        f"{found['dim']} over {among} and evaluated on held-out documents:</p>"
    )
    rows = [("unigram", found["unigram"], "")]
    colours = {"EE": "#2a86c8", "EW": "#d55e00"}
    rows += [(fit["name"], fit, colours.get(form, "")) for form, fit in found["forms"].items()]
    rows.append(("smoothed bigram", found["smoothed_bigram"], ""))
    most = max(fit["bits"] for _, fit, _ in rows)
    body = [
        [escape(name), f"{fit['bits']:.3f}", f"{fit['params']:,}", _bar(fit["bits"] / most, colour)]
        for name, fit, colour in rows
    ]
    b = found["bounds"]
    bounds = table(
        [f"best matrix of rank {b['dim']}", "energy not captured"],
        [
            ["any", f"{100 * b['any']:.1f}%"],
            ["symmetric", f"{100 * b['symmetric']:.1f}%"],
            ["positive semidefinite", f"{100 * b['semidefinite']:.1f}%"],
        ],
    )
    fits = table(["", "bits per token", "parameters", ""], body)
    yield f'<div class="grid"><div>{fits}</div><div>{bounds}</div></div>'
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


def _bar(fraction: float, colour: str) -> str:
    style = f"width:{100 * fraction:.1f}%" + (f";background:{colour}" if colour else "")
    return f'<td class="bars"><span class="bar" style="{style}"></span></td>'


def _shape(document: dict[str, Any]) -> str:
    """'width 256', from the runs of the exhibits."""
    settings = document["runs"][0]["settings"]
    seeds = f", seed {document['seeds'][0]}" if len(document["seeds"]) > 1 else ""
    return f"width {settings['dim']}{seeds}"


def _grid(figures: dict[str, str], captions: dict[str, str], last: str = "") -> str:
    cells = [
        f"<figure>{figures[name]}<figcaption>{escape(caption)}</figcaption></figure>"
        for name, caption in captions.items()
        if name in figures
    ]
    return f'<div class="grid">{"".join(cells)}{last}</div>'


def samples(document: dict[str, Any]) -> Iterable[str]:
    yield "<h2>Samples</h2>"
    yield '<p class="note">The same held-out prompt (grey), one continuation each at temperature 0.7.</p>'
    titles = {v["name"]: (v["title"], v["colour"]) for v in document["variants"]}
    for sample in document["samples"]:
        title, colour = titles[sample["variant"]]
        yield f"<h3>{dot(colour)}{escape(title)}</h3>"
        if sample.get("note"):
            yield f'<p class="note">{escape(sample["note"])}</p>'
        else:
            yield f"<pre><b>{escape(sample['prompt'])}</b>{escape(sample['text'])}</pre>"


def settings(document: dict[str, Any]) -> Iterable[str]:
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
