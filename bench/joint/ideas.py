"""Ablation of `tie --joint` on a real model: what each idea costs on three kinds of text, adding one at a time.

    python bench/joint/texts.py .cache/texts
    python bench/joint/ideas.py tinyllama.gguf --texts .cache/texts [--rank 1.0] [--calibrate prose,code]

The layers run once over the calibration text and once over the test text; the hidden states are kept in --states, so
that a second call runs no layer. A recipe is then judged from them: the KL of its head on the original's hidden states
is exact, the cost of its embedding is estimated from the measured sensitivity. `--confirm NAME` runs the layers too.
Prints a Markdown table: KL per kind of text (head + embedding), in nats per token.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from tiebeam.budget import human
from tiebeam.surgery import open_source
from tiebeam.surgery.joint import Calibration, Recipe, calibrate
from tiebeam.surgery.joint.calibration import HELD_OUT_TOKENS, start_ids
from tiebeam.surgery.joint.fit import fit, saved, tables_of
from tiebeam.surgery.joint.held_out import HeldOut
from tiebeam.surgery.joint.joint_plan import pair_rows
from tiebeam.surgery.joint.joint_tie import open_original

KINDS = ("prose", "code", "shakespeare")
LENGTH = 512
SHARES = (0.1, 0.2, 0.3, 0.4)  # of the embeddings, stored exactly


def recipes(rank: int, vocab: int) -> dict[str, Recipe]:
    """Each recipe adds one idea to the one before it; the last ones store more and more embeddings exactly."""
    alike = Recipe(rank, power=1.0, balance=1.0, probe=False, ridge=None, predicted=0.0, uniform=1.0, exact_rows=0)
    counts = replace(alike, uniform=1e-9)
    metric = replace(counts, ridge=0.1, probe=True)
    predicted = replace(metric, predicted=0.5, uniform=0.02)
    default = Recipe(rank)
    return {
        "equal row weights, equal energy": alike,
        "+ rows weighted by counts": counts,
        "+ metric of the hidden states, measured sensitivity": metric,
        "+ rows also weighted by the model's predictions": predicted,
        "+ weights to the power 0.75, balance chosen; none exact": replace(default, exact_rows=0),
        **{
            f"+ {share:.0%} of the embeddings exact": replace(default, exact_rows=round(share * vocab))
            for share in SHARES
        },
    }


def windows(engine: object, path: Path, tokens: int) -> list[list[int]]:
    """Windows of 512 tokens spread over a text, each after the start token."""
    start = start_ids(engine)
    ids = engine.encode(path.read_text(encoding="utf-8"))[len(start) :]
    step = LENGTH - len(start)
    found = [[*start, *ids[at : at + step]] for at in range(0, len(ids) - step, step)]
    wanted = max(1, tokens // LENGTH)
    return [found[i * len(found) // wanted] for i in range(wanted)] if len(found) > wanted else found


def stored(where: Path, engine: object, runs: list[list[int]]) -> list[np.ndarray]:
    """The hidden states of `runs`, from `where` or computed and kept there."""
    where.mkdir(parents=True, exist_ok=True)
    states = []
    for i, run in enumerate(runs):
        path = where / (hashlib.sha256(np.asarray(run).tobytes()).hexdigest()[:24] + ".npy")
        if not path.exists():
            np.save(path, engine.hidden(run))
            print(f"{where}: {i + 1} of {len(runs)} runs", file=sys.stderr, flush=True)
        states.append(np.load(path))
    return states


class Stored:
    """An engine whose `hidden` takes known sequences from disk."""

    def __init__(self, engine: object, where: Path) -> None:
        self._engine, self._where = engine, where

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def hidden(self, run: list[int]) -> np.ndarray:
        return stored(self._where, self._engine, [run])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--states", type=Path, default=Path(".cache/states"))
    parser.add_argument("--calibrate", default="prose,code")
    parser.add_argument("--tokens", type=int, default=16384, help="calibration tokens")
    parser.add_argument("--held-out-tokens", type=int, default=HELD_OUT_TOKENS, help="that the balance is chosen on")
    parser.add_argument("--balance", type=float, help="take this one instead of choosing it")
    parser.add_argument("--test-tokens", type=int, default=4096, help="of each kind")
    parser.add_argument("--rank", type=float, default=1.0, help="in widths of the model")
    parser.add_argument("--only", default="", help="only recipes whose name contains this")
    parser.add_argument("--confirm", action="store_true", help="run the layers with each recipe's tables")
    options = parser.parse_args()
    source = open_source(options.model)
    engine = open_original(source, "auto", None, lambda done, total: None)
    rows, V, D = pair_rows(source)
    texts = [(options.texts / f"{k}.calibrate.txt").read_text(encoding="utf-8") for k in options.calibrate.split(",")]
    calibration: Calibration = calibrate(Stored(engine, options.states), texts, options.tokens, options.held_out_tokens)
    held_out = HeldOut(engine, calibration.held_out, calibration.held_out_hidden)
    tests = {}
    for kind in KINDS:
        runs = windows(engine, options.texts / f"{kind}.test.txt", options.test_tokens)
        states = [h[:-1] for h in stored(options.states, engine, runs)]
        tests[kind] = HeldOut(engine, runs, states)
        print(f"{kind}: {tests[kind].before.nats:.3f} nats per token on {tests[kind].before.tokens:,} tokens")
    print(f"\n| rank {options.rank:g} D | saves | {' | '.join(KINDS)} | CPU s |\n|---|{'---:|' * (len(KINDS) + 2)}")
    for name, recipe in recipes(round(options.rank * D), V).items():
        if options.only not in name:
            continue
        began = time.process_time()
        recipe = replace(recipe, balance=recipe.balance or options.balance)
        fitted = fit(held_out, rows, calibration, recipe, confirm=False)
        spent = time.process_time() - began
        embed, head = tables_of(rows, V, fitted.factors)
        joined, cells = engine.with_tables(embed, head), []
        for test in tests.values():
            ids = np.concatenate([np.asarray(run) for run in test.runs])
            wrong = engine.embed.lookup(ids) - embed.lookup(ids)
            read = 0.5 * fitted.sensitivity * float((wrong**2).sum(1).mean())
            cell = f"{test.measure(joined, layers=False).kl:.4f} + {read:.4f}"
            if options.confirm:
                after = test.measure(joined)
                lost = after.nats - test.before.nats
                cell += f"; KL {after.kl:.4f}, {lost:+.3f} ± {after.interval:.3f} nats"
            cells.append(cell)
        less = human(saved(V, D, recipe.rank, len(fitted.factors.exact)))
        print(f"| {name} | {less} | {' | '.join(cells)} | {spent:.0f} |", flush=True)


if __name__ == "__main__":
    main()
