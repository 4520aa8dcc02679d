"""docs/benchmarks.md from a finished run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .machine import describe
from .rows import Row, figure, number
from .runs import rows_of

_INTRO = """# Benchmarks

Written by `make bench` (`python bench/all.py`), which keeps every run as JSON in .cache/bench. Every ratio is the
median of paired ratios from interleaved rounds, with its 95% interval in brackets; *noise* is half the width of the
interval of the reference measured against itself in the same rounds (A/A). A row that is not known to 5% is measured up
to three times as long; if its interval then still allows more than one verdict, it is *unstable*, as is a row whose A/A
interval misses 1 by more than the row is from its goal. A row that is known to 5% and whose interval includes the goal
is *at goal*. *Limited* means that the goal is missed and that the named limit, measured in the same rounds, misses it
too and is within 5%. *At limit* is a row that is not known to 5% because its reference varies, while its ratio to the
named limit is below 1.05 with all of its interval: met or limited. A ratio beyond its physical limit would be *measured
wrong*. `inspect` is launched twice, in the run and at its end, and its intervals cover both launches. On a slow or busy
machine the later benches get fewer rounds and one launch. The sides of a row work in memory that was used before: the
first use of a page costs the same for all, and on a virtual machine it varies by a factor of fifty. `python
bench/all.py --compare A.json B.json` says on how many rows two runs agree."""

GOALS = (  # a bench row names the goal that it answers in `job`
    "tied loss over its three products",
    "tied loss against torch.compile and cut-cross-entropy",
    "whole tied step",
    "open 3 shards; 200 shards",
    "`tiebeam inspect` process over `python -c pass`",
    "tie, untie, 2.0 GB in 3 shards",
    "untie with --link",
    "trim of 2.2 GB over cp",
    "opening a GGUF for the decoder",
    "decode, one token, over reading the weights once",
    "prefill of 512 tokens against transformers",
    "training step over its own matrix products",
    "bits per byte after 3 minutes against AdamW",
    "bits per byte against nanoGPT's and parameter-golf's recipes",
    "lens on 128,256 x 4,096",
    "the second use of a cached corpus",
    "`tiebeam studio` ready to answer, from the command",
    "distributed",
    "scaling",
)


def page(run: dict[str, Any], not_run: dict[str, str]) -> str:
    """`not_run`: name of a long bench and its command."""
    verdicts = Counter(row.verdict for _, row in rows_of(run))
    counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    lines = [
        *_INTRO.splitlines(), "",
        f"Run of {run['started'][:16].replace('T', ' ')} UTC, {run['minutes']:.0f} minutes"
        + (", **quick**: fewer rounds than a full run" if run.get("quick") else "") + f": {counted}.",
        "", *describe(run["machine"]),
    ]  # fmt: skip
    lines += ["", "## Goals", "", "| goal | measured in | rows |", "|---|---|---|"]
    for goal in GOALS:
        found = [(bench, row) for bench, row in rows_of(run) if row.job == goal]
        benches = ", ".join(f"[{bench}](#{bench})" for bench in dict.fromkeys(bench for bench, _ in found))
        counts = Counter(row.verdict for _, row in found)
        lines.append(f"| {goal} | {benches} | {', '.join(f'{n} {v}' for v, n in counts.items()) or 'not measured'} |")
    for failure in run.get("failed", {}).items():
        lines += ["", f"**bench/{failure[0]} failed**: {failure[1]}"]
    for name, found in run["benches"].items():
        rows = [Row.from_dict(one) for one in found["rows"]]
        again = f", measured again at {found['again']} UTC" if found.get("again") else ""
        lines += ["", f"## {name}", "", f"`python bench/all.py --only {name}`, {found['seconds']:.0f} s{again}"]
        lines += [f"- {line}" for line in found.get("said", [])]
        lines += ["", "| row | figure | against | goal | noise | verdict | what limits it |",
                  "|---|---:|---|---|---:|---|---|"]  # fmt: skip
        lines += [_line(row) for row in rows]
    if not_run:
        lines += ["", "## Not in `make bench`", "", "`make bench` has no time for these:", ""]
        lines += [f"- `{command}`: {what}" for what, command in not_run.items()]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    noise = f"±{50 * (row.control[2] - row.control[0]):.1f}%" if row.control else ""
    verdict = (
        row.verdict if row.verdict in ("met", "at goal", "limited", "at limit", "figure") else f"**{row.verdict}**"
    )
    limit = row.limited_by + (f": {number(row.limit)}" if row.limit is not None else "")
    return f"| {row.name} | {figure(row)} | {row.against} | {row.goal} | {noise} | {verdict} | {limit} |"
