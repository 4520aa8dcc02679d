"""Run a whole comparison: train in turns, collect the ladder, answer the questions, write the report."""

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
from tiebeam.compare.claims import check_claims
from tiebeam.compare.embedding_similarity import alignment, expected_knn_overlap
from tiebeam.compare.gaps_to_baseline import make_ladder, pair_answers
from tiebeam.compare.held_out_curves import HeldOutCurve, read_curve, windows_of
from tiebeam.compare.held_out_losses import mean_and_standard_error, token_counts
from tiebeam.compare.ladder_cells import collect_cell
from tiebeam.compare.learning_rate_sweep import SweptRate, chosen_rates, stored_sweep, sweep, sweep_document
from tiebeam.compare.plan_answer import answer_for
from tiebeam.compare.run_metrics import RunMetrics, collect_metrics, read_json
from tiebeam.compare.step_budget import LEAST_STEPS, steps_for_minutes
from tiebeam.compare.text_samples import sample_continuations
from tiebeam.compare.train_runs import PLAN, SWEEP, OnRecord, Run, plan_runs, prepared_directory, train_in_turns
from tiebeam.compare.variants import MATCHES, VARIANTS, Variant
from tiebeam.compare.verdict import Verdict, make_verdict, only_one
from tiebeam.errors import BadRequest
from tiebeam.lens.zero_layer import study
from tiebeam.train import Distribution, Settings
from tiebeam.train.cpu_threads import ThreadWatch, free_threads

if TYPE_CHECKING:
    from tiebeam.budget import Budget
    from tiebeam.compare.document import Answer, Cell, Ladder
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
    base: Settings, corpus: Corpus | Sequence[Corpus], out: Path, *,
    variants: Sequence[Variant] = (VARIANTS["tied"], VARIANTS["untied"]), widths: Sequence[int] | None = None,
    seeds: int = 1, match: str | None = None, anchor: str = "tied", bigram_dim: int = 64, bigram_steps: int = 250,
    sweep_rates: bool = False, for_plan: tuple[str, Budget] | None = None, memory: bool = False, force: bool = False,
    command: str = "", report: OnRecord | None = None, planned: Callable[[Sequence[Run]], None] | None = None,
    progress: Progress | None = None, interrupted: Callable[[], bool] = lambda: False,
    distribution: Distribution | None = None,
) -> Comparison:  # fmt: skip
    """Run the comparison in `out`, or resume it.

        corpus = build_corpus(["books/"])
        result = compare(base_settings(steps=300), corpus, Path("comparison"), widths=(64, 128, 256))
        print(*result.document["verdict"]["sentences"], sep="\\n")

    Args:
        base: the shape, and the length: `steps` of every run, or `minutes` of training of all runs together.
        corpus: the text; several corpora of the same text with different vocabularies give a ladder of vocabularies.
        out: directory of the runs and the report.
        variants: what is trained at every width.
        widths: widths of the ladder; by default only that of `base`.
        seeds: runs per variant and width.
        match: what the runs are given: the same "steps" (default), the same "time" (with `minutes`), or the same
            steps and "params" (MLPs are resized to the parameter count of `anchor`).
        sweep_rates: first sweep the learning rates of embedding and head, for every variant and width, in runs of a
            quarter of the steps; the comparison then uses the best.
        for_plan: the name and the budget of a planned model, to be placed on the measured trend.
        memory: also measure the peak memory of each run, in a subprocess of its own.
        force: replace the comparison in `out`.
        report: receives every training record.
        planned: receives all runs before the first one is trained.
        progress: receives the stages after training.
        interrupted: polled after every step; True saves all states and raises `Interrupted`.
        distribution: the ranks of a multi-rank comparison, already joined.
    """
    stage = progress or (lambda what, done, total: None)
    ranks = distribution or Distribution()
    corpora = [corpus] if not isinstance(corpus, Sequence) else list(corpus)
    widths = sorted(set(widths or (base.dim,)))
    match = match or "steps"
    _check_request(base, match, anchor, seeds)
    identity = {
        "settings": json.loads(json.dumps({**base.to_dict(), "threads": None})), "match": match, "anchor": anchor,
        "sweep": sweep_rates,
    }  # fmt: skip
    plan = {**identity, "threads": base.threads or free_threads(), "steps": None, "command": command}
    numbers = [base.seed + i for i in range(seeds)]
    with explaining(out), prepared_directory(out, plan, force, ranks) as plan:
        groups, swept = _planned_groups(
            base, variants, corpora, widths, numbers, out, plan, ranks, sweep_rates, stage, interrupted
        )
        if planned:
            planned([run for runs in groups for run in runs])
        watch = ThreadWatch(plan["threads"]) if base.threads is None and ranks.world_size == 1 else None
        for runs in groups:
            train_in_turns(runs, report=report, interrupted=interrupted, distribution=distribution, watch=watch)
        if not ranks.is_main:
            return Comparison(out, {})
        curves = _read_curves([run for runs in groups for run in runs])
        cells = []
        for done, curve in enumerate(curves):
            stage("collecting metrics", done, len(curves))
            cells.append(collect_cell(curve, memory))
        main = corpora[0]
        counts = token_counts(main)
        widest = [c.run for c in curves if c.run.width == widths[-1] and c.run.corpus is main]
        metrics = []
        for done, run in enumerate(widest):
            stage("measuring the widest models", done, len(widest))
            metrics.append(collect_metrics(run, counts))
        bigrams = study(
            main, dim=min(bigram_dim, main.vocab // 4), steps=bigram_steps, top=_BIGRAM_TOKENS, seed=base.seed,
            progress=progress,
        )  # fmt: skip
        stage("drawing figures", 0, 0)
        by_variant = pair_answers(curves, cells, match)
        ladder = make_ladder(curves, cells)
        document = {
            "tiebeam": __version__,
            "verdict": _verdict(by_variant, ladder.gaps, curves, match).to_dict(),
            "answers": by_variant.get(_headline(by_variant), {}),
            "by_variant": by_variant,
            "claims": check_claims(curves),
            "ladder": ladder.to_dict(),
            "match": match,
            "anchor": anchor if match == "params" else None,
            "seeds": numbers,
            "variants": [_variant_row(v, metrics, cells) for v in variants],
            "runs": [m.record for m in metrics],
            "alignment": _alignment(metrics, counts),
            "bigrams": bigrams.to_dict(),
            "heat": bigram_heatmaps(main, metrics),
            "samples": sample_continuations(main, metrics),
            "corpus": main.to_dict(),
            "sweep": swept,
            "plan": _for_plan(for_plan, ladder, _headline(by_variant)),
            "command": command,
            "machine": _machine(plan["threads"]),
        }
        document = json.loads(json.dumps(document, default=lambda value: value.to_dict()))
        write(out, document)
        return Comparison(out, document)


def _check_request(base: Settings, match: str, anchor: str, seeds: int) -> None:
    if match not in MATCHES:
        raise BadRequest(f'match="{match}" is not one of {", ".join(MATCHES)}')
    if match == "time" and base.minutes is None:
        raise BadRequest('match="time" needs a time such as minutes=5; with steps=500 the runs are equal in steps')
    if not 1 <= seeds <= 100:
        raise BadRequest(f"seeds={seeds} is not between 1 and 100; use seeds=3 for error bars")
    if anchor not in VARIANTS:
        raise BadRequest(f'anchor="{anchor}" is not one of {", ".join(VARIANTS)}')


def _planned_groups(
    base: Settings, variants: Sequence[Variant], corpora: Sequence[Corpus], widths: Sequence[int],
    seeds: Sequence[int], out: Path, plan: dict[str, Any], ranks: Distribution, sweep_rates: bool, stage: Progress,
    interrupted: Callable[[], bool],
) -> tuple[list[list[Run]], dict[str, Any] | None]:  # fmt: skip
    """The runs with their length and learning rates, and the sweep behind the rates.

    A time for everything becomes the same number of steps for every run.
    """

    def groups(base: Settings, **rates: Any) -> list[list[Run]]:
        return plan_runs(
            base, variants, corpora, widths, seeds, out, match=plan["match"], anchor=plan["anchor"],
            threads=plan["threads"], **rates,
        )  # fmt: skip

    if base.minutes is not None and plan["match"] == "time":
        base = replace(base, minutes=base.minutes / sum(map(len, groups(base))))
    elif base.minutes is not None:
        if plan["steps"] is None:
            plan["steps"] = steps_for_minutes(base.minutes, groups(base), ranks)
            ranks.on_main(lambda: write_text(out / PLAN, json.dumps(plan, indent=2) + "\n"))
        base = replace(base, minutes=None, steps=plan["steps"])
    if not sweep_rates:
        return groups(base), None
    first = [run for runs in groups(base) for run in runs if run.seed == seeds[0]]
    steps = max(LEAST_STEPS, (base.steps or 400) // 4)
    swept = stored_sweep(read_json(out / SWEEP).get("rows"))
    known = {(one.variant, one.width, one.vocab) for one in swept}
    missing = [run for run in first if (run.variant, run.width, run.vocab) not in known]

    def store(more: Sequence[SweptRate]) -> None:
        swept.extend(more)
        text = json.dumps(sweep_document(swept, steps), indent=1)
        ranks.on_main(lambda: write_text(out / SWEEP, text + "\n"))

    sweep(missing, steps, progress=stage, interrupted=interrupted, swept=store, distribution=ranks)
    found = sweep_document(swept, steps)
    return groups(base, rates=chosen_rates(swept, first)), found


def _for_plan(plan: tuple[str, Budget] | None, ladder: Ladder, variant: str) -> dict[str, Any] | None:
    if plan is None or not variant:
        return None
    gaps = [gap for gap in ladder.gaps if gap.variant == variant]
    return answer_for(*plan, gaps, ladder.cells).to_dict()


def _read_curves(runs: Sequence[Run]) -> list[HeldOutCurve]:
    windows = {id(run.corpus): windows_of(run) for run in runs}
    return [read_curve(run, windows[id(run.corpus)]) for run in runs]


def _headline(by_variant: dict[str, dict[str, Answer]]) -> str:
    """The variant that the verdict is about: untied if it was trained."""
    return "untied" if "untied" in by_variant else next(iter(by_variant), "")


def _verdict(
    by_variant: dict[str, dict[str, Answer]], gaps: Sequence[Any], curves: Sequence[HeldOutCurve], match: str
) -> Verdict:
    if not by_variant:
        last = curves[-1]
        seeds = len({curve.run.seed for curve in curves})
        return only_one(last.run.variant, last.run.config.variant.title, float(last.bpb[-1]), seeds)
    second, vocab = _headline(by_variant), curves[0].run.vocab
    mine = [gap for gap in gaps if gap.variant == second and gap.vocab == vocab]
    return make_verdict(by_variant[second], mine, "time" if match == "time" else "steps")


def write(out: Path, document: dict[str, Any]) -> None:
    """Write report.json, figures/ and report.html from one document, each file atomically."""
    from tiebeam.compare.figures import draw
    from tiebeam.compare.report_page import page

    figures = draw(document, out / FIGURES)
    write_text(out / DOCUMENT, json.dumps(document, indent=1, allow_nan=False) + "\n")
    write_text(out / PAGE, page(document, figures))


def _variant_row(variant: Variant, metrics: Sequence[RunMetrics], cells: Sequence[Cell]) -> dict[str, Any]:
    """One row of the table for the widest model: means over seeds, with standard errors if there are several."""
    mine = [m.record for m in metrics if m.run.config.variant.name == variant.name]
    row: dict[str, Any] = {
        "name": variant.name, "title": variant.title, "colour": variant.colour, "params": mine[0]["params"],
        "note": mine[0]["note"], "width": mine[0]["width"],
        "state_bytes": next(cell.state_bytes for cell in cells if cell.name == mine[0]["name"]),
    }  # fmt: skip
    for key in ("bpb", "val_bpb", "packed_bpb", "tokens_per_second", "steps", "seconds", "peak_bytes", "disk_bytes",
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
    """Training settings of a comparison: those of a run."""
    return Settings(**{"validate_every": 0.1, **options})
