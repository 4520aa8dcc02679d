"""Variants and how they are matched."""

import pytest

from tiebeam.compare.variants import (
    TOLERANCE,
    VARIANTS,
    WIDTH_MULTIPLE,
    count_params,
    parse_variants,
    suite,
    variant_configs,
)
from tiebeam.errors import BadRequest

TIES = [VARIANTS[name] for name in ("tied", "untied", "then", "bridge")]


def test_variants_can_be_named_once_in_any_order():
    assert [v.name for v in parse_variants(" untied, TIED ")] == ["untied", "tied"]
    for wrong in ("", "tied,tied", "tied,loose"):
        with pytest.raises(BadRequest, match="variants="):
            parse_variants(wrong)


def test_a_run_that_unties_counts_its_final_parameters(tiny):
    found = {c.variant.name: c.params for c in variant_configs(tiny(), list(VARIANTS.values()), 300, "steps")}
    assert found["then"] == found["untied"] == found["tied"] + 300 * 16
    assert found["bridge"] == found["tied"] + 16 * 16


def test_every_variant_adds_the_parameters_that_its_line_in_the_list_says(tiny):
    base, V = tiny(), 300
    D = base.dim
    for variant in VARIANTS.values():
        if variant.name != "tied":
            more = count_params(variant.apply(base), V) - count_params(VARIANTS[variant.against].apply(base), V)
            formula = variant.adds.replace("nothing", "0")
            assert more == eval(formula, {"V": V, "D": D}), variant.name


def test_the_frontier_has_every_variant_and_what_each_modifies():
    names = [variant.name for variant in suite("frontier")]
    assert names == list(VARIANTS)
    assert all(variant.against in names and variant.against in ("tied", "untied") for variant in VARIANTS.values())
    assert len({variant.colour for variant in VARIANTS.values()}) == len(VARIANTS)
    with pytest.raises(BadRequest, match='suite="nothing" is not one of frontier'):
        suite("nothing")


def test_a_variant_changes_the_settings_that_make_it_and_no_others(tiny):
    base = tiny()
    assert VARIANTS["tied"].apply(base) == base
    for variant in VARIANTS.values():
        before, after = base.to_dict(), variant.apply(base).to_dict()
        changed = {key for key in after if after[key] != before[key]}
        assert changed <= {*variant.changes, "embed_dim"}
        assert changed or variant.name == "tied"
    assert VARIANTS["factorised"].apply(base).embed_dim == base.dim // 2


@pytest.mark.parametrize("anchor", ["tied", "untied"])
@pytest.mark.parametrize("vocab", [64, 1000])
def test_matched_models_have_the_same_parameter_count(tiny, anchor, vocab):
    base = tiny(layers=3, mlp_dim=64, dim=32, heads=4, kv_heads=2)
    configs = variant_configs(base, TIES, vocab, "params", anchor)
    goal = next(c.params for c in configs if c.variant.name == anchor)
    for c in configs:
        assert c.params == count_params(c.settings, vocab)
        assert abs(c.params - goal) <= TOLERANCE * goal
        assert c.settings.mlp_dim % WIDTH_MULTIPLE == 0 or c.note == "unchanged"
        assert c.note


def test_the_anchor_keeps_its_shape(tiny):
    base = tiny(layers=3, mlp_dim=64, dim=32, heads=4, kv_heads=2)
    configs = {c.variant.name: c for c in variant_configs(base, TIES, 64, "params", "tied")}
    assert configs["tied"].settings.mlp_dim == 64
    assert configs["untied"].settings.mlp_dim < 64
    assert "MLP width 64 ->" in configs["untied"].note


def test_an_impossible_match_is_an_error(tiny):
    with pytest.raises(BadRequest, match="cannot be matched to"):
        variant_configs(tiny(dim=4, heads=2, mlp_dim=8), [VARIANTS["untied"]], 5000, "params")
