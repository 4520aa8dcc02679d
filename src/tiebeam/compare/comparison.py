"""Run a whole comparison: train, collect metrics, compute the verdict, write report.json, figures and report.html."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebeam._fs import explaining, write_text
from tiebeam._html import table
from tiebeam._version import __version__
from tiebeam.compare.bigram_heatmaps import bigram_heatmaps
from tiebeam.compare.embedding_similarity import alignment, expected_knn_overlap
from tiebeam.compare.held_out_losses import mean_and_standard_error, token_counts
from tiebeam.compare.run_metrics import RunMetrics, collect_metrics
from tiebeam.compare.text_samples import sample_continuations
from tiebeam.compare.train_runs import OnRecord, prepared_directory, run_all
from tiebeam.compare.variants import MATCHES, VARIANTS, Variant, variant_configs
from tiebeam.compare.verdict import compute_verdict
from tiebeam.errors import BadRequest
from tiebeam.lens.zero_layer import study
from tiebeam.train import Settings
from tiebeam.train.device import free_threads

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus

Progress = Callable[[str, int, int], None]
PAGE, DOCUMENT, FIGURES = "report.html", "report.json", "figures"
_BIGRAM_TOKENS = 1023  # the most frequent; the time of a fit grows with the square of its vocabulary
_MIN_COUNT = 10  # rows of rarer tokens are close to their initial values and carry no information about alignment


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`: the content of report.json, and the directory."""

    out: Path
    document: dict[str, Any]

    @property
    def page(self) -> Path:
        return self.out / PAGE

    def __str__(self) -> str:
        return "\n".join(self.document["verdict"]["sentences"])

    def _repr_html_(self) -> str:
        rows = [("", sentence) for sentence in self.document["verdict"]["sentences"]]
        return table([*rows, ("report", str(self.page))], title="comparison")


def compare(
    base: Settings, corpus: Corpus, out: Path, *, variants: Sequence[Variant] = (VARIANTS["tied"], VARIANTS["untied"]),
    seeds: int = 1, match: str | None = None, anchor: str = "tied", bigram_dim: int = 64, bigram_steps: int = 250,
    force: bool = False, in_subprocess: bool = True, command: str = "", report: OnRecord | None = None,
    progress: Progress | None = None, interrupted: Callable[[], bool] = lambda: False,
) -> Comparison:  # fmt: skip
    """Run the comparison in `out`, or resume it. `base.minutes` or `base.steps` is the length of each run.

    `match` is what is equal between variants: "steps", "time" or "params" (then `anchor` is the variant whose
    parameter count the others are matched to). `in_subprocess` trains each run in its own subprocess, which is needed
    to measure its peak memory. `report` receives every training record, `progress` the stages after training.

        corpus = build_corpus(["books/"])
        result = compare(base_settings(minutes=1.0), corpus, Path("comparison"))
        print(result.document["verdict"]["sentences"][0])
    """
    stage = progress or (lambda what, done, total: None)
    match = match or ("steps" if base.minutes is None else "time")
    if match not in MATCHES:
        raise BadRequest(f'match="{match}" is not one of {", ".join(MATCHES)}')
    if match == "time" and base.minutes is None:
        raise BadRequest('match="time" needs a time such as minutes=1; with steps=500 the runs are equal in steps')
    if not 1 <= seeds <= 100:
        raise BadRequest(f"seeds={seeds} is not between 1 and 100; use seeds=3 for error bars")
    if anchor not in VARIANTS:
        raise BadRequest(f'anchor="{anchor}" is not one of {", ".join(VARIANTS)}')
    configs = variant_configs(base, list(variants), corpus.vocab, match, anchor)
    identity = {
        "settings": json.loads(json.dumps({**base.to_dict(), "threads": None})), "match": match, "anchor": anchor,
        "corpus": corpus.to_dict()["digest"], "vocab": corpus.vocab,
    }  # fmt: skip
    plan = {**identity, "threads": base.threads or free_threads(), "command": command}
    numbers = [base.seed + i for i in range(seeds)]
    with explaining(out), prepared_directory(out, plan, force) as plan:
        runs = run_all(
            configs, numbers, corpus, out, threads=plan["threads"], equal_steps=match == "steps",
            in_subprocess=in_subprocess, report=report, interrupted=interrupted,
        )  # fmt: skip
        counts = token_counts(corpus)
        metrics = []
        for done, run in enumerate(runs):
            stage("collecting metrics", done, len(runs))
            metrics.append(collect_metrics(run, corpus, counts))
        stage("collecting metrics", len(runs), len(runs))
        bigrams = study(
            corpus, dim=min(bigram_dim, corpus.vocab // 4), steps=bigram_steps, top=_BIGRAM_TOKENS, seed=base.seed,
            progress=progress,
        )  # fmt: skip
        stage("drawing figures", 0, 0)
        document = {
            "tiebeam": __version__,
            "verdict": compute_verdict(metrics, corpus, match).to_dict(),
            "match": match,
            "anchor": anchor if match == "params" else None,
            "seeds": numbers,
            "variants": [_variant_row(v, metrics) for v in variants],
            "runs": [m.record for m in metrics],
            "alignment": _alignment(metrics, counts),
            "bigrams": bigrams.to_dict(),
            "heat": bigram_heatmaps(corpus, metrics),
            "samples": sample_continuations(corpus, metrics),
            "corpus": corpus.to_dict(),
            "command": command,
            "machine": _machine(plan["threads"]),
        }
        write(out, document)
        return Comparison(out, document)


def write(out: Path, document: dict[str, Any]) -> None:
    """Write report.json, figures/ and report.html from one document, each file atomically."""
    from tiebeam.compare.figures import draw
    from tiebeam.compare.report_page import page

    figures = draw(document, out / FIGURES)
    write_text(out / DOCUMENT, json.dumps(document, indent=1, allow_nan=False) + "\n")
    write_text(out / PAGE, page(document, figures))


def _variant_row(variant: Variant, metrics: Sequence[RunMetrics]) -> dict[str, Any]:
    """One row of the table: means over seeds, with standard errors if there are several."""
    mine = [m.record for m in metrics if m.run.config.variant.name == variant.name]
    row: dict[str, Any] = {
        "name": variant.name, "title": variant.title, "colour": variant.colour, "params": mine[0]["params"],
        "note": mine[0]["note"],
    }  # fmt: skip
    for key in ("val_bpb", "packed_bpb", "tokens_per_second", "steps", "seconds", "peak_bytes", "disk_bytes",
                "packed_bytes"):  # fmt: skip
        values = [record[key] for record in mine if record[key] is not None]
        row[key], row[f"{key}_error"] = mean_and_standard_error(values) if values else (None, None)
    return row


def _alignment(metrics: Sequence[RunMetrics], counts: Any) -> list[dict[str, Any]]:
    """Similarity of the tied matrix to the embedding and LM head of the untied run with the same seed."""
    by_seed: dict[int, dict[str, RunMetrics]] = {}
    for m in metrics:
        by_seed.setdefault(m.run.seed, {})[m.run.config.variant.name] = m
    rows_used = np.flatnonzero(counts >= _MIN_COUNT)
    if len(rows_used) < 20:
        rows_used = np.arange(len(counts))
    rows = []
    for seed, variants in by_seed.items():
        if {"tied", "untied"} <= set(variants):
            tied, untied = variants["tied"], variants["untied"]
            rows.append(
                {
                    "seed": seed,
                    "rows": len(rows_used),
                    "embed": alignment(tied.embed[rows_used], untied.embed[rows_used]),
                    "head": alignment(tied.embed[rows_used], untied.head[rows_used]),
                    "each_other": alignment(untied.embed[rows_used], untied.head[rows_used]),
                    "knn_by_chance": expected_knn_overlap(len(rows_used)),
                }
            )
    return rows


def _machine(threads: int) -> dict[str, Any]:
    import torch

    return {
        "python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
        "system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count(), "threads": threads,
    }  # fmt: skip


def base_settings(**options: Any) -> Settings:
    """Training settings of a comparison: those of a run, with fewer validations during training."""
    return replace(Settings(**options), validate_every=0.125)
