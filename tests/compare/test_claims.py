"""The verdict on a claim: by its interval, against what the claim says about the loss."""

import pytest

from tiebeam.compare.claims import MARGIN, verdict


@pytest.mark.parametrize(
    ("expects", "low", "high", "expected"),
    [
        ("lower", -0.03, -0.01, "holds"),
        ("lower", 0.01, 0.03, "does not hold"),
        ("lower", -0.01, 0.03, "cannot tell at this size"),
        ("no higher", -0.03, 0.9 * MARGIN, "holds"),
        ("no higher", 1.1 * MARGIN, 0.03, "does not hold"),
        ("no higher", 0.9 * MARGIN, 1.1 * MARGIN, "cannot tell at this size"),
    ],
)
def test_a_claim_holds_when_the_whole_interval_is_on_its_side(expects, low, high, expected):
    assert verdict(expects, low, high) == expected
