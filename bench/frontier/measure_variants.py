"""Train every variant of `tiebeam compare --list` at one small size and print the table of docs/frontier.md.

All variants of a seed take turns in one process, a few steps each, with the same batches and held-out windows. First a
short sweep picks the learning rate of embedding and head for each variant, tied included. Differences are paired over
held-out documents and over seeds. Finished runs are kept, so the same command goes on after an interrupt.

    python bench/frontier/measure_variants.py --out /tmp/frontier --steps 300 --seeds 3 [TEXT ...]
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from tiebeam.compare.claims import verdict
from tiebeam.compare.paired_statistics import Estimate, estimate
from tiebeam.compare.variants import VARIANTS, Variant, count_params, suite
from tiebeam.corpus import Corpus, build_corpus
from tiebeam.train import RunDirectory, Settings
from tiebeam.train.held_out_windows import HeldOutWindows
from tiebeam.train.loop import training

SLICE = 10  # steps
FACTORS = (0.3, 1.0, 3.0)
SWEEP_SEED = 1000


def with_factor(settings: Settings, factor: float) -> Settings:
    """The settings with the learning rates of embedding and head times `factor`."""
    rates = settings.learning_rates
    scaled = {name: getattr(rates, name) * factor for name in ("table", "embed", "head")}
    return replace(settings, rates=replace(rates, **scaled))


def train_together(runs: dict[str, Settings], corpus: Corpus, out: Path) -> None:
    """Train the runs that are not finished, in turns of `SLICE` steps."""
    left = {name: s for name, s in runs.items() if not _finished(out / name)}
    with ExitStack() as stack:
        opened = [
            stack.enter_context(training(s, corpus, out / name, force=True, by_document=True))
            for name, s in left.items()
        ]
        while not all(run.done for run in opened):
            for run in opened:
                run.advance(SLICE)
            print(f"\r{min(run.step for run in opened):,} steps of {len(opened)} runs ", end="", file=sys.stderr)
        for run in opened:
            run.finish()
    print(file=sys.stderr)


def sweep(
    variants: list[Variant], base: Settings, corpus: Corpus, out: Path
) -> tuple[dict[str, dict[float, float]], dict[str, float]]:
    """Held-out bits per byte by variant and learning rate factor, and the best factor; a best at the edge goes on."""
    factors = {v.name: list(FACTORS) for v in variants}
    while True:
        runs = {f"{v.name}-{f:.2g}": with_factor(v.apply(base), f) for v in variants for f in factors[v.name]}
        train_together(runs, corpus, out)
        swept = {
            name: {f: float(last_check(out / f"{name}-{f:.2g}")["val_bpb"]) for f in tried}
            for name, tried in factors.items()
        }
        best = {name: min(tried, key=tried.__getitem__) for name, tried in swept.items()}
        edges = {name: f for name, f in best.items() if f in (min(factors[name]), max(factors[name]))}
        if not edges:
            return swept, best
        for name, f in edges.items():
            factors[name].append(f / 3 if f < 1 else f * 3)


def _finished(path: Path) -> bool:
    return (path / "run.json").is_file() and RunDirectory(path).is_finished()


def last_check(path: Path) -> dict:
    """The last check on the held-out windows: nats of every document in `val_documents`."""
    return [record for record in RunDirectory(path).metrics() if "val_documents" in record][-1]


def isotropy(path: Path) -> float:
    """Of the embedding, as 2502.08441 measures it: min over max of the sum of exp(c . e) over eigenvectors c."""
    tensors, _ = RunDirectory(path).load_state()
    E = tensors["model.model.embed_tokens.weight"].double().numpy()
    _, vectors = np.linalg.eigh(E.T @ E)
    partition = np.exp(E @ vectors).sum(0)
    return float(partition.min() / partition.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    for name, default in (("steps", 300), ("sweep-steps", 100), ("seeds", 3), ("dim", 64), ("layers", 2), ("heads", 4),
                          ("kv-heads", 2), ("mlp-dim", 128), ("context", 64), ("vocab", 1024), ("batch-tokens", 1024),
                          ("max-bytes", 8_000_000)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    o = parser.parse_args()
    corpus = build_corpus(o.text, vocab=o.vocab, max_bytes=o.max_bytes)
    base = Settings(
        steps=o.steps, dim=o.dim, layers=o.layers, heads=o.heads, kv_heads=o.kv_heads, mlp_dim=o.mlp_dim,
        context=o.context, batch_tokens=o.batch_tokens, threads=1, save_every=1e9, log_every=50, validate_every=0.5,
    )  # fmt: skip
    variants = suite("frontier")
    swept, chosen = sweep(variants, replace(base, steps=o.sweep_steps, seed=SWEEP_SEED), corpus, o.out / "sweep")
    for seed in range(o.seeds):
        train_together(
            {f"seed{seed}/{v.name}": with_factor(v.apply(replace(base, seed=seed)), chosen[v.name]) for v in variants},
            corpus, o.out,
        )  # fmt: skip
    windows = HeldOutWindows(corpus, o.context, base.validation_tokens)
    nats = {
        v.name: np.array([last_check(o.out / f"seed{s}/{v.name}")["val_documents"] for s in range(o.seeds)])
        for v in variants
    }  # [S, G]
    found = {v.name: estimate(nats[v.name] - nats[v.against], windows.bytes) for v in variants if v.name != "tied"}
    document = {
        "command": " ".join(["python", *sys.argv]), "held_out": windows.to_dict(), "sweep": swept, "factors": chosen,
        "isotropy": {name: isotropy(o.out / f"seed0/{name}") for name in ("tied", "coupled")},
        "bpb": {name: (values.sum(1) / windows.bytes.sum() / np.log(2)).tolist() for name, values in nats.items()},
        "differences": {name: asdict(d) for name, d in found.items()},
        "params": {v.name: count_params(v.apply(base), corpus.vocab) for v in variants},
    }  # fmt: skip
    (o.out / "frontier.json").write_text(json.dumps(document, indent=1))
    print(table(found, document))


def table(found: dict[str, Estimate], document: dict) -> str:
    lines = ["| variant | claim | source | against | bits per byte, 95% interval | parameters | lr | verdict |",
             "|---|---|---|---|---:|---:|---:|---|"]  # fmt: skip
    for name, d in found.items():
        v = VARIANTS[name]
        extra = document["params"][name] - document["params"][v.against]
        number = f"{d.difference:+.4f} ({d.low:+.4f} to {d.high:+.4f})"
        rate = f"x{document['factors'][v.name]:g}"
        cells = (
            f"`{v.name}`",
            v.claim,
            v.source,
            v.against,
            number,
            f"{extra:+,}",
            rate,
            verdict(v.expects, d.low, d.high),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
