"""Choosing the next token."""

from __future__ import annotations

import numpy as np
import pytest

from tiebeam.decode import Sampling
from tiebeam.errors import BadRequest

LOGITS = np.log(np.array([0.5, 0.05, 0.3, 0.15], np.float32))


def test_greedy_picks_the_most_likely_token():
    assert Sampling().choose(LOGITS, Sampling().generator()) == 0


def test_temperature_one_samples_by_probability():
    sampling = Sampling(temperature=1.0, seed=3)
    random = sampling.generator()
    counts = np.bincount([sampling.choose(LOGITS, random) for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(counts, [0.5, 0.05, 0.3, 0.15], atol=0.03)


def test_a_low_temperature_sharpens():
    ids, p = Sampling(temperature=0.5).distribution(LOGITS)
    expected = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
    assert ids.tolist() == [0, 2, 3, 1]
    np.testing.assert_allclose(p, expected / expected.sum(), rtol=1e-5)


def test_top_k_keeps_the_k_most_likely():
    ids, p = Sampling(temperature=1.0, top_k=2).distribution(LOGITS)
    assert ids.tolist() == [0, 2]
    np.testing.assert_allclose(p, [0.625, 0.375], rtol=1e-5)


@pytest.mark.parametrize(("top_p", "kept"), [(0.4, 1), (0.6, 2), (0.85, 3), (1.0, 4)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, kept):
    assert len(Sampling(temperature=1.0, top_p=top_p).distribution(LOGITS)[0]) == kept


def test_top_k_applies_before_top_p():
    ids, _ = Sampling(temperature=1.0, top_k=2, top_p=0.6).distribution(LOGITS)
    assert ids.tolist() == [0]  # of the two left, the first has 0.625


def test_a_seed_makes_sampling_repeatable():
    logits = np.zeros(1000, np.float32)

    def draws(seed: int) -> list[int]:
        sampling = Sampling(temperature=1.0, seed=seed)
        random = sampling.generator()
        return [sampling.choose(logits, random) for _ in range(8)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0 must be 0 .greedy. or above"),
        ({"temperature": float("nan")}, "temperature=nan must be"),
        ({"temperature": 1.0, "top_k": 0}, "top_k=0 must be at least 1"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p=0.0 must be above 0"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p=1.5 must be above 0 and at most 1"),
        ({"top_k": 5}, "need a temperature above 0"),
        ({"temperature": 1.0, "seed": -1}, "seed=-1 must not be negative"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(BadRequest, match=message):
        Sampling(**settings)
