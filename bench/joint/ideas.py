"""Ablation of `tie --joint`: nats per token on test text, adding one idea at a time.

    python bench/joint/pair.py --minutes 40 --out .cache/untied
    python bench/joint/ideas.py .cache/untied --texts .cache/texts [--rank 1.0] [--calibrate wiki,code,shakespeare]

Prints a Markdown table: a row per recipe, a column per kind of text, and the mean increase of the loss. With
`--calibrate wiki` the other kinds are out of distribution.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from tiebeam.decode import Decoder, Table
from tiebeam.surgery import open_source
from tiebeam.surgery.joint import Calibration, Recipe, calibrate
from tiebeam.surgery.joint.fit import fit, tables_of
from tiebeam.surgery.joint.held_out import HeldOut
from tiebeam.surgery.joint.joint_plan import pair_rows

KINDS = ("wiki", "code", "shakespeare")


def loss(decoder: Decoder, tokens: list[int]) -> float:
    return decoder.perplexity(tokens, context=256).nats_per_token


def recipes(rank: int, vocab: int, width: int) -> dict[str, Recipe]:
    """Each recipe adds one idea to the one before it."""
    alike = Recipe(rank, power=1.0, balance=1.0, probe=False, ridge=None, predicted=0.0, uniform=1.0)
    counts = replace(alike, uniform=1e-9)
    metric = replace(counts, ridge=0.1)
    probed = replace(metric, probe=True)
    predicted = replace(probed, predicted=0.5)
    uniform = replace(predicted, uniform=0.02)
    power = replace(uniform, power=None)
    balance = replace(power, balance=None)
    few = vocab // 64
    return {
        "joint, equal row weights, equal energy": alike,
        "+ rows weighted by counts": counts,
        "+ head in the metric of its hidden states": metric,
        "+ balance from measured sensitivity": probed,
        "+ rows also weighted by the model's predictions": predicted,
        "+ uniform share of 0.02": uniform,
        "+ power of the weights chosen on held-out text": power,
        "+ balance refined on held-out text (default)": balance,
        f"+ the {few} worst rows exact": replace(balance, exact_rows=few),
        f"+ the {4 * few} worst rows exact": replace(balance, exact_rows=4 * few),
        f"instead of {4 * few} exact rows, the same parameters as rank": replace(
            balance, rank=rank + 8 * few * width // vocab
        ),
        "default without the metric": replace(balance, ridge=None),
        "default without the sensitivity": replace(balance, probe=False),
        "default with equal row weights": replace(balance, uniform=1.0, power=1.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--calibrate", default="wiki,code,shakespeare")
    parser.add_argument("--rank", type=float, default=1.0, help="in widths of the model")
    parser.add_argument("--tokens", type=int, default=8192, help="test tokens of each kind")
    options = parser.parse_args()
    source = open_source(options.model)
    decoder = Decoder.open(source.checkpoint)
    rows, V, D = pair_rows(source)
    tests = {
        kind: decoder.encode((options.texts / f"{kind}.test.txt").read_text(encoding="utf-8"))[: options.tokens]
        for kind in KINDS
    }
    text = "\n".join(
        (options.texts / f"{kind}.calibrate.txt").read_text(encoding="utf-8") for kind in options.calibrate.split(",")
    )
    calibration: Calibration = calibrate(decoder, text)
    held_out = HeldOut(decoder, calibration.held_out)
    base = {kind: loss(decoder, tokens) for kind, tokens in tests.items()}
    E, W = rows(0, V)
    print(f"rank {options.rank:g} D, calibrated on {options.calibrate}: {calibration.tokens:,} tokens\n")
    print(f"| | {' | '.join(KINDS)} | mean loss |\n|---|{'---:|' * (len(KINDS) + 1)}")

    def show(name: str, decoder: Decoder) -> None:
        nats = {kind: loss(decoder, tokens) for kind, tokens in tests.items()}
        lost = np.mean([nats[kind] - base[kind] for kind in KINDS])
        print(f"| {name} | {' | '.join(f'{nats[kind]:.3f}' for kind in KINDS)} | {lost:+.3f} |", flush=True)

    show("original model", decoder)
    for name, matrix in (("keep embed", E), ("keep head", W), ("keep mean", (E + W) / 2)):
        show(name, decoder.with_tables(Table(matrix), Table(matrix)))
    for name, recipe in recipes(round(options.rank * D), V, D).items():
        fitted = fit(held_out, rows, calibration, recipe)
        searched = recipe.power is None or recipe.balance is None
        chosen = f" ({fitted.recipe.power:g}, {fitted.recipe.balance:g})" if searched else ""
        show(name + chosen, decoder.with_tables(*tables_of(rows, V, fitted.factors, fitted.exact)))


if __name__ == "__main__":
    main()
