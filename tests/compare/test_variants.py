"""Variants and how they are matched."""

import pytest

from tiebeam.compare.variants import TOLERANCE, VARIANTS, WIDTH_MULTIPLE, count_params, parse_variants, variant_configs
from tiebeam.errors import BadRequest


def test_variants_can_be_named_once_in_any_order():
    assert [v.name for v in parse_variants(" untied, TIED ")] == ["untied", "tied"]
    for wrong in ("", "tied,tied", "tied,loose"):
        with pytest.raises(BadRequest, match="variants="):
            parse_variants(wrong)


def test_a_run_that_unties_counts_its_final_parameters(tiny):
    found = {c.variant.name: c.params for c in variant_configs(tiny(), list(VARIANTS.values()), 300, "steps")}
    assert found["then"] == found["untied"] == found["tied"] + 300 * 16
    assert found["bridge"] == found["tied"] + 16 * 16


@pytest.mark.parametrize("anchor", ["tied", "untied"])
@pytest.mark.parametrize("vocab", [64, 1000])
def test_matched_models_have_the_same_parameter_count(tiny, anchor, vocab):
    base = tiny(layers=3, mlp_dim=64, dim=32, heads=4, kv_heads=2)
    configs = variant_configs(base, list(VARIANTS.values()), vocab, "params", anchor)
    goal = next(c.params for c in configs if c.variant.name == anchor)
    for c in configs:
        assert c.params == count_params(c.settings, vocab)
        assert abs(c.params - goal) <= TOLERANCE * goal
        assert c.settings.mlp_dim % WIDTH_MULTIPLE == 0 or c.note == "unchanged"
        assert c.note


def test_the_anchor_keeps_its_shape(tiny):
    base = tiny(layers=3, mlp_dim=64, dim=32, heads=4, kv_heads=2)
    configs = {c.variant.name: c for c in variant_configs(base, list(VARIANTS.values()), 64, "params", "tied")}
    assert configs["tied"].settings.mlp_dim == 64
    assert configs["untied"].settings.mlp_dim < 64
    assert "MLP width 64 ->" in configs["untied"].note


def test_an_impossible_match_is_an_error(tiny):
    with pytest.raises(BadRequest, match="cannot be matched to"):
        variant_configs(tiny(dim=4, heads=2, mlp_dim=8), [VARIANTS["untied"]], 5000, "params")
