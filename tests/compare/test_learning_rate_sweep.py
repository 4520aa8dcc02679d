"""The sweep: it picks the lowest held-out loss, reports the sensitivity, and warns at the edge."""

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import pytest

from tiebeam.compare import VARIANTS, Interrupted, compare
from tiebeam.compare.learning_rate_sweep import (
    FACTORS,
    MOST,
    SweptRate,
    best_between,
    chosen_rates,
    exponent,
    next_factor,
    roles_of,
    stored_sweep,
    sweep,
    sweep_notes,
)
from tiebeam.compare.train_runs import plan_runs


@pytest.fixture
def runs(corpus, tiny, tmp_path):
    chosen = [VARIANTS["tied"], VARIANTS["untied"]]
    (found,) = plan_runs(tiny(), chosen, [corpus], [16], [0], tmp_path, match="steps", anchor="tied", threads=1)
    return found


def test_a_sweep_finds_the_rate_that_learns(runs):
    found = sweep(runs, 12, factors=(1e-9, 0.5, 1.0), most=3)
    assert [(one.variant, one.role) for one in found] == [("tied", "table"), ("untied", "embed"), ("untied", "head")]
    for one in found:
        assert one.rates == pytest.approx([getattr(runs[0].settings.learning_rates, one.role) * f
                                           for f in (1e-9, 0.5, 1.0)])  # fmt: skip
        losses = [loss for loss in one.bpb if loss is not None]
        assert one.best == one.rates[one.bpb.index(min(losses))]
    tied = found[0]
    assert tied.best > tied.rates[0]  # a table that does not move does not learn
    rates = chosen_rates(found, runs)
    assert rates["tied", 16, 300].table == tied.best
    assert rates["untied", 16, 300].head == found[2].best
    assert rates["tied", 16, 300].matrices == runs[0].settings.learning_rates.matrices
    assert stored_sweep(json.loads(json.dumps([one.to_dict() for one in found]))) == found


def test_a_run_that_diverges_is_never_the_best(runs):
    (found,) = sweep(runs[:1], 6, factors=(1.0, 1e30), most=2)
    assert found.best == found.rates[0]
    assert found.bpb[1] is None or found.bpb[1] > found.bpb[0]


@pytest.mark.parametrize("best", [2.0**-4, 0.25, 1.0, 4.0, 2.0**3])
def test_the_grid_grows_until_the_best_rate_lies_inside(best):
    losses: dict[float, float | None] = {}
    while (factor := next_factor(losses, FACTORS, most=9)) is not None:
        assert factor not in losses
        losses[factor] = None if factor > 2 * best else abs(math.log(factor / best))
    assert min(losses) < best < max(losses)
    assert losses[best] == 0
    beyond = round(math.log2(best))  # factors of two from the default
    assert len(losses) == 3 + (beyond if beyond >= 0 else -1 - beyond)
    assert all(b == 2 * a for a, b in itertools.pairwise(sorted(losses)))


def test_a_grid_stops_at_its_largest_size():
    losses: dict[float, float | None] = {}
    while (factor := next_factor(losses, FACTORS, most=5)) is not None:
        losses[factor] = -factor
    assert sorted(losses) == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_the_best_between_the_candidates_is_the_minimum_of_a_parabola():
    rates, best = (0.01, 0.02, 0.04), 0.027
    losses = [2 + math.log(rate / best) ** 2 for rate in rates]
    costs = (losses[0] - losses[1], losses[2] - losses[1])
    one = SweptRate("tied", 64, 300, "table", rates, tuple(losses), 0.02, False, *costs)
    assert best_between(one) == pytest.approx(best)
    assert best_between(replace(one, at_edge=True)) == 0.02


def test_no_candidate_is_trained_twice(runs):
    polls = 0  # one per step

    def never() -> bool:
        nonlocal polls
        polls += 1
        return False

    embed, head = sweep(runs[1:], 3, interrupted=never)
    default = runs[1].settings.learning_rates.head
    assert head.bpb[head.rates.index(default)] == min(loss for loss in embed.bpb if loss is not None)
    assert polls == 3 * (len(embed.rates) + len(head.rates) - 1)


def test_an_interrupted_sweep_keeps_what_it_has(corpus, tiny, tmp_path):
    options: dict[str, Any] = {"bigram_dim": 8, "bigram_steps": 5, "sweep_rates": True}
    polls = itertools.count()
    with pytest.raises(Interrupted):  # tied is swept in 20 steps per candidate
        compare(tiny(steps=4), corpus, tmp_path / "R", interrupted=lambda: next(polls) > 20 * MOST, **options)
    kept = json.loads((tmp_path / "R" / "sweep.json").read_text())["rows"]
    assert [row["variant"] for row in kept] == ["tied"]
    found = compare(tiny(steps=4), corpus, tmp_path / "R", **options)
    assert found.document["sweep"]["rows"][0] == kept[0]
    assert [row["role"] for row in found.document["sweep"]["rows"]] == ["table", "embed", "head"]


def swept(width, best, edge=False, variant="tied"):
    return SweptRate(variant, width, 300, "table", (0.01, 0.1), (2.0, 2.1), best, edge, None, 0.1)


def test_a_best_rate_at_the_edge_is_a_warning():
    (note,) = sweep_notes([swept(64, 0.01, edge=True)])
    assert "tied, width 64: the best table learning rate 0.01 is at the edge of its grid (0.01 to 0.1)" in note


@pytest.mark.parametrize(("power", "name"), [(1.0, "1/width"), (0.5, "1/sqrt(width)"), (0.0, "neither")])
def test_the_exponent_over_widths_is_named(power, name):
    rows = [swept(w, w**-power) for w in (64, 128, 256)]
    assert exponent(rows) == pytest.approx(power, abs=1e-9)
    assert sweep_notes(rows)[-1].endswith(f"({name})")
    assert exponent(rows[:2]) is None


def test_a_comparison_uses_and_keeps_the_swept_rates(corpus, tiny, tmp_path):
    options: dict[str, Any] = {"bigram_dim": 8, "bigram_steps": 5, "sweep_rates": True}
    found = compare(tiny(steps=4), corpus, tmp_path / "R", **options)
    best = {(row["variant"], row["role"]): row["best"] for row in found.document["sweep"]["rows"]}
    tied, untied = found.document["ladder"]["cells"]
    assert tied["rates"]["table"] == best["tied", "table"]
    assert (untied["rates"]["embed"], untied["rates"]["head"]) == (best["untied", "embed"], best["untied", "head"])
    again = compare(tiny(steps=4), corpus, tmp_path / "R", **options)
    assert again.document["sweep"] == found.document["sweep"]


def test_only_an_untied_pair_has_two_rates(runs):
    assert [roles_of(run) for run in runs] == [("table",), ("embed", "head")]
