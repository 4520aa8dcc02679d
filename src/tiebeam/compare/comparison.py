"""The whole comparison: train, examine, judge, write report.json, the figures and report.html."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebeam._fs import write_text
from tiebeam._version import __version__
from tiebeam.compare.exhibits import heat, samples
from tiebeam.compare.held_out_losses import mean_and_error, token_counts
from tiebeam.compare.run_metrics import Examined, examine
from tiebeam.compare.table_similarity import alignment, chance_overlap
from tiebeam.compare.train_runs import Report, claim, run_all
from tiebeam.compare.variants import MATCHES, VARIANTS, Variant, contenders
from tiebeam.compare.verdict import judge
from tiebeam.errors import BadRequest
from tiebeam.lens.zero_layer import study
from tiebeam.train import Settings
from tiebeam.train.device import free_threads

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus

Progress = Callable[[str, int, int], None]
PAGE, DOCUMENT, FIGURES = "report.html", "report.json", "figures"
_BIGRAM_TOKENS = 1023  # the most frequent; a fit's time grows with the square of its vocabulary
_OFTEN = 10  # a row seen less often is mostly where it began, and says nothing about alignment


@dataclass(frozen=True)
class Comparison:
    """What `compare` leaves: the report's document, and where it is."""

    out: Path
    document: dict[str, Any]

    @property
    def page(self) -> Path:
        return self.out / PAGE


def compare(
    base: Settings, corpus: Corpus, out: Path, *, variants: Sequence[Variant] = (VARIANTS["tied"], VARIANTS["untied"]),
    seeds: int = 1, match: str | None = None, anchor: str = "tied", bigram_dim: int = 64, bigram_steps: int = 250,
    force: bool = False, apart: bool = True, command: str = "", report: Report | None = None,
    progress: Progress | None = None, interrupted: Callable[[], bool] = lambda: False,
) -> Comparison:  # fmt: skip
    """Run the comparison at `out`, or go on with it. `base.minutes` or `base.steps` is the length of each run.

    `apart` trains each run in a process of its own, which is what its peak memory is measured on.
    """
    stage = progress or (lambda what, done, total: None)
    match = match or ("steps" if base.minutes is None else "time")
    if match not in MATCHES:
        raise BadRequest(f"--match is {match!r}; it is one of {', '.join(MATCHES)}")
    if match == "time" and base.minutes is None:
        raise BadRequest("--match time needs --minutes M; with --steps N the runs are equal in steps")
    if not 1 <= seeds <= 100:
        raise BadRequest(f"--seeds is {seeds}; take 1, or 3 for error bars")
    if anchor not in VARIANTS:
        raise BadRequest(f"--anchor is {anchor!r}; it is one of {', '.join(VARIANTS)}")
    field = contenders(base, list(variants), corpus.vocab, match, anchor)
    asked = {
        "settings": json.loads(json.dumps({**base.to_dict(), "threads": None})), "match": match, "anchor": anchor,
        "corpus": corpus.to_dict()["digest"], "vocab": corpus.vocab,
    }  # fmt: skip
    plan = claim(out, {**asked, "threads": base.threads or free_threads(), "command": command}, force)
    numbers = [base.seed + i for i in range(seeds)]
    runs = run_all(
        field, numbers, corpus, out, threads=plan["threads"], equal_steps=match == "steps", force=force, apart=apart,
        report=report, interrupted=interrupted,
    )  # fmt: skip
    counts = token_counts(corpus)
    examined = []
    for done, run in enumerate(runs):
        stage("examining the runs", done, len(runs))
        examined.append(examine(run, corpus, counts))
    stage("examining the runs", len(runs), len(runs))
    zero = study(
        corpus, dim=min(bigram_dim, corpus.vocab // 4), steps=bigram_steps, top=_BIGRAM_TOKENS, seed=base.seed,
        progress=progress,
    )  # fmt: skip
    stage("drawing", 0, 0)
    document = {
        "tiebeam": __version__,
        "verdict": judge(examined, corpus, match).to_dict(),
        "match": match,
        "anchor": anchor if match == "params" else None,
        "seeds": numbers,
        "variants": [_variant(v, examined) for v in variants],
        "runs": [e.record for e in examined],
        "alignment": _alignment(examined, counts),
        "bigrams": zero.to_dict(),
        "heat": heat(corpus, examined),
        "samples": samples(corpus, examined),
        "corpus": corpus.to_dict(),
        "command": command,
        "machine": _machine(plan["threads"]),
    }
    write(out, document)
    return Comparison(out, document)


def write(out: Path, document: dict[str, Any]) -> None:
    """report.json, figures/ and report.html from one document; each file moved into place whole."""
    from tiebeam.compare.figures import draw
    from tiebeam.compare.report_page import page

    figures = draw(document, out / FIGURES)
    write_text(out / DOCUMENT, json.dumps(document, indent=1, allow_nan=False) + "\n")
    write_text(out / PAGE, page(document, figures))


def _variant(variant: Variant, examined: Sequence[Examined]) -> dict[str, Any]:
    """One row of the table: means over seeds, with standard errors where there are several."""
    mine = [e.record for e in examined if e.run.contender.variant.name == variant.name]
    row: dict[str, Any] = {
        "name": variant.name, "title": variant.title, "colour": variant.colour, "params": mine[0]["params"],
        "note": mine[0]["note"],
    }  # fmt: skip
    for key in ("val_bpb", "packed_bpb", "tokens_per_second", "steps", "seconds", "peak_bytes", "disk_bytes",
                "packed_bytes"):  # fmt: skip
        values = [record[key] for record in mine if record[key] is not None]
        row[key], row[f"{key}_error"] = mean_and_error(values) if values else (None, None)
    return row


def _alignment(examined: Sequence[Examined], counts: Any) -> list[dict[str, Any]]:
    """The tied table against the two tables of the untied run with the same seed."""
    by_seed: dict[int, dict[str, Examined]] = {}
    for e in examined:
        by_seed.setdefault(e.run.seed, {})[e.run.contender.variant.name] = e
    often = np.flatnonzero(counts >= _OFTEN)
    if len(often) < 20:
        often = np.arange(len(counts))
    rows = []
    for seed, sides in by_seed.items():
        if {"tied", "untied"} <= set(sides):
            tied, two = sides["tied"], sides["untied"]
            rows.append(
                {
                    "seed": seed,
                    "rows": len(often),
                    "embed": alignment(tied.embed[often], two.embed[often]),
                    "head": alignment(tied.embed[often], two.head[often]),
                    "each_other": alignment(two.embed[often], two.head[often]),
                    "knn_by_chance": chance_overlap(len(often)),
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
    """Settings of a comparison: those of a run, with fewer looks at the held-out text on the way."""
    return replace(Settings(**options), validate_every=0.125)
