"""A planned model on the measured trend: what is measured, what is extrapolated, and what known models do."""

import pytest

from helpers.comparison_answers import answer
from tiebeam.budget import price
from tiebeam.cli.plan import planned_model
from tiebeam.compare.document import Cell, Gap
from tiebeam.compare.plan_answer import answer_for
from tiebeam.errors import BadRequest


def gap(share, difference):
    one = answer(difference, 0.01)
    return Gap("untied", 64, 2048, share, one, one)


def cell(params):
    return Cell("c", 64, 2048, "tied", 0, params, 1, 0.2, 1, None, 1, 1, 1, 1.0, 1, 1.0, 2.0, (), (), {}, "")


GAPS = [gap(0.30, -0.06), gap(0.20, -0.04), gap(0.10, -0.02)]
CELLS = [cell(300_000), cell(3_000_000)]


def test_inside_the_measured_range_the_trend_is_interpolated():
    found = answer_for("mine", price(1000, 100, 300_000), GAPS, CELLS)  # 100,000 of 500,000
    assert found.head_share == pytest.approx(0.2)
    assert found.inside
    assert found.predicted == pytest.approx(-0.04)
    assert found.sentences[0].startswith("Measured: untied minus tied in bits per byte at equal steps, by head share: "
                                         "-0.0200 (-0.0300 to -0.0100) at 10.0%")  # fmt: skip
    assert not any("extrapolation" in text for text in found.sentences)
    assert found.sentences[-1].startswith("Known models: Of ")


def test_outside_it_is_called_an_extrapolation_in_share_and_in_size():
    found = answer_for("big", price(100_000, 4096, 70_000_000_000), GAPS, CELLS)
    assert not found.inside
    assert "outside the measured 10.0% to 30.0%" in found.sentences[1]
    assert "an extrapolation" in found.sentences[1]
    assert "In size it is an extrapolation: the measured models have 300.0k to 3.0M parameters" in found.sentences[2]


def test_one_width_gives_no_trend():
    found = answer_for("mine", price(1000, 100, 300_000), GAPS[:1], CELLS)
    assert found.predicted is None
    assert "one width gives no trend" in found.sentences[1]


def test_a_plan_is_a_shape_or_a_known_model():
    title, budget = planned_model("50257x768x85M")
    assert (title, budget.vocab, budget.dim, budget.trunk) == ("50257x768x85M", 50257, 768, 85_000_000)
    assert planned_model("phi-4-mini")[1].head_share == pytest.approx(0.138, abs=0.01)
    with pytest.raises(BadRequest, match="non-embedding parameters"):
        answer_for("mine", price(1000, 100), GAPS, CELLS)
