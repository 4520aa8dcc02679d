"""How many known models tie, by head share; the sentences claim no more than the data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.catalog import BANDS, Verdict, find, known_models, neighbours, verdict

BAND = BANDS[4]


def test_every_share_is_in_exactly_one_band():
    assert all(sum(share / 1000 in band for band in BANDS) == 1 for share in range(1001))


def test_every_band_holds_at_least_12_models():
    assert all(verdict(band.low / 100).models >= 12 for band in BANDS)


@given(st.floats(0, 0.5))
def test_numbers_match_the_known_models(share):
    found = verdict(share)
    inside = [
        model
        for model in known_models()
        if model.head_share is not None and model.head_share in found.band and model.confidence != "low"
    ]
    assert share in found.band
    assert (found.models, found.tied) == (len(inside), sum(model.tied for model in inside))
    assert str(found.models) in found.sentence
    assert str(found.tied) in found.sentence


def test_doubtful_and_untieable_models_are_not_counted():
    counted = sum(verdict(band.low / 100).models for band in BANDS)
    left_out = [model for model in known_models() if model.confidence == "low" or not model.tieable]
    assert {model.name for model in left_out} == {"Falcon 40B", "RWKV-5 World 3B", "RemBERT"}
    assert counted == len(known_models()) - len(left_out)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (Verdict(BAND, 37, 35, ("A", "B")), "Of 37 known models {}, 35 tie; A and B do not."),
        (Verdict(BAND, 37, 36, ("A",)), "Of 37 known models {}, 36 tie; A does not."),
        (Verdict(BAND, 22, 16, tuple("ABCDEF")), "Of 22 known models {}, 16 tie."),
        (Verdict(BAND, 18, 3, ("A", "B", "C")), "Of 18 known models {}, only 3 tie: A, B and C."),
        (Verdict(BAND, 18, 1, ("A",)), "Of 18 known models {}, only 1 ties: A."),
        (Verdict(BAND, 30, 5, tuple("ABCDE")), "Of 30 known models {}, only 5 tie."),
        (Verdict(BAND, 43, 22), "Of 43 known models {}, 22 tie and 21 keep two matrices."),
        (Verdict(BAND, 2, 1), "Of 2 known models {}, 1 ties and 1 keeps two matrices."),
        (Verdict(BAND, 9, 9), "All 9 known models {} tie."),
        (Verdict(BAND, 9, 0), "None of the 9 known models {} ties."),
        (Verdict(BAND, 1, 1), "The one known model {} ties."),
        (Verdict(BAND, 1, 0), "The one known model {} does not tie."),
        (Verdict(BAND, 0, 0), "There is no known model {}."),
    ],
)
def test_wording(found, sentence):
    assert found.sentence == sentence.format("where a separate head would be 15-25% of the total")


def test_band_names():
    assert [str(band) for band in BANDS] == ["under 2%", "2-5%", "5-10%", "10-15%", "15-25%", "25% or more"]


def test_small_models_tie_and_large_ones_do_not():
    small, large = verdict(0.2), verdict(0.01)
    assert small.tied / small.models > 0.8
    assert large.tied / large.models < 0.2


def test_neighbours_are_the_nearest_other_models():
    phi = find("phi-4-mini")
    assert phi.head_share is not None
    near = neighbours(phi.head_share, count=3, besides=phi)
    assert len(near) == 3
    assert phi not in near
    distance = max(abs(model.head_share - phi.head_share) for model in near)
    others = [m for m in known_models() if m.tieable and m.confidence != "low" and m is not phi and m not in near]
    assert all(abs(model.head_share - phi.head_share) >= distance for model in others)
