"""The option grids of Liger and cut-cross-entropy: every case equals float64, or is refused for its targets."""

from pathlib import Path

import pytest
import torch

from helpers.loss_grids import CUT_CROSS_ENTROPY, FAMILIES, LIGER, LIGER_FUSED, Errors, run

PAGE = Path(__file__).parents[2] / "docs" / "loss.md"


@pytest.fixture(autouse=True)
def one_thread():
    """The shapes are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(case):
    found = run(case)
    if case.out_of_range:
        assert "out of range" in found
    else:
        assert isinstance(found, Errors)
        assert found.equal, (case, found)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sample_of_each_family_equals_float64(family):
    for case in FAMILIES[family][:: max(1, len(FAMILIES[family]) // 3)]:
        check(case)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", FAMILIES)
def test_every_case_of_a_family_equals_float64(family):
    for case in FAMILIES[family]:
        check(case)


def test_the_grids_are_as_large_as_those_of_the_peers():
    assert sum(map(len, LIGER.values())) == 185
    assert sum(map(len, LIGER_FUSED.values())) == 141
    assert [len(cases) for cases in CUT_CROSS_ENTROPY.values()] == [288, 144, 3]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_lists_every_family(family):
    count = len(FAMILIES[family])
    settled = f"{count} refused" if FAMILIES[family][0].out_of_range else count
    assert f"| {family} | {count} | {settled} |" in PAGE.read_text()
