"""The tie follows from the three facts, for every combination of them."""

import pytest

from tiebeam.pair import Matrix, Pair, Tie

E = Matrix("embed", (10, 4), "F32", 160, "f")
W = Matrix("head", (10, 4), "F32", 160, "f")


@pytest.mark.parametrize(
    ("embed", "head", "declared", "equal", "tie"),
    [
        (E, None, True, None, Tie.SHARED),
        (E, None, None, None, Tie.SHARED),
        (E, None, False, None, Tie.HEADLESS),
        (E, W, False, False, Tie.UNTIED),
        (E, W, None, False, Tie.UNTIED),
        (E, W, True, False, Tie.TORN),
        (E, W, True, True, Tie.TWIN),
        (E, W, False, True, Tie.TWIN),
        (E, W, None, True, Tie.TWIN),
        (None, W, True, None, Tie.SWAPPED),
        (None, W, False, None, Tie.SWAPPED),
        (None, None, True, None, Tie.NONE),
    ],
)
def test_tie_follows_from_the_three_facts(embed, head, declared, equal, tie):
    assert Pair(embed, head, declared, "test", equal).tie is tie


def test_two_names_for_one_storage_are_shared_not_twin():
    assert Pair(E, W, False, "test", equal=True, one_storage=True).tie is Tie.SHARED


def test_encoder_without_a_head_has_no_tie():
    assert Pair(E, None, False, "test", encoder=True).tie is Tie.NONE


def test_every_tie_has_its_own_meaning():
    assert len({tie.meaning for tie in Tie}) == len(Tie)
    assert Tie.SHARED.meaning == "one matrix is both embedding and LM head"


def test_stored_names_the_matrices_that_exist():
    assert Pair(E, None, True, "test").stored == ("embed",)
    assert Pair(E, W, True, "test", True).stored == ("embed", "head")
