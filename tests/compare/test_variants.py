"""Who competes, and what is made equal."""

import pytest

from tiebeam.compare.variants import GRAIN, TOLERANCE, VARIANTS, contenders, count_params, parse_variants
from tiebeam.errors import BadRequest


def test_variants_are_named_once_in_any_order():
    assert [v.name for v in parse_variants(" untied, TIED ")] == ["untied", "tied"]
    for wrong in ("", "tied,tied", "tied,loose"):
        with pytest.raises(BadRequest, match="--variants"):
            parse_variants(wrong)


def test_parameters_of_a_run_that_unties_are_those_it_ends_with(tiny):
    found = {c.variant.name: c.params for c in contenders(tiny(), list(VARIANTS.values()), 300, "steps")}
    assert found["then"] == found["untied"] == found["tied"] + 300 * 16
    assert found["bridge"] == found["tied"] + 16 * 16


@pytest.mark.parametrize("anchor", ["tied", "untied"])
@pytest.mark.parametrize("vocab", [64, 1000])
def test_matched_models_have_one_count(tiny, anchor, vocab):
    base = tiny(layers=3, mlp_dim=64, dim=32, heads=4, kv_heads=2)
    field = contenders(base, list(VARIANTS.values()), vocab, "params", anchor)
    goal = next(c.params for c in field if c.variant.name == anchor)
    for c in field:
        assert c.params == count_params(c.settings, vocab)
        assert abs(c.params - goal) <= TOLERANCE * goal
        assert c.settings.mlp_dim % GRAIN == 0 or c.note == "as it is"
        assert c.note


def test_only_the_others_change(tiny):
    base = tiny(layers=3, mlp_dim=64, dim=32, heads=4, kv_heads=2)
    field = {c.variant.name: c for c in contenders(base, list(VARIANTS.values()), 64, "params", "tied")}
    assert field["tied"].settings.mlp_dim == 64
    assert field["untied"].settings.mlp_dim < 64
    assert "MLP width 64 ->" in field["untied"].note


def test_what_cannot_be_matched_is_said(tiny):
    with pytest.raises(BadRequest, match="cannot be brought to"):
        contenders(tiny(dim=4, heads=2, mlp_dim=8), [VARIANTS["untied"]], 5000, "params")
