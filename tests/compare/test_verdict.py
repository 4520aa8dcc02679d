"""The verdict says what the numbers say, and no more."""

from types import SimpleNamespace

import numpy as np
import pytest

from tiebeam.compare.held_out_losses import bands, mean_and_error, paired_error
from tiebeam.compare.variants import VARIANTS, Contender
from tiebeam.compare.verdict import judge


def examined(variant, bpb, seed=0, params=1000, losses=None):
    run = SimpleNamespace(contender=Contender(VARIANTS[variant], None, params), seed=seed)
    record = {"val_bpb": bpb, "params": params}
    return SimpleNamespace(run=run, record=record, losses=losses)


def losses(corpus, shift, noise=0.0, seed=0):
    size = len(corpus.val) - 1
    return (np.full(size, 2.0 + shift) + noise * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def pair(corpus, a, b, noise=0.01, **more):
    return [
        examined("tied", a, losses=losses(corpus, 0, noise, 1), **more),
        examined("untied", b, losses=losses(corpus, 0.1 * np.sign(b - a), noise, 2), params=1200),
    ]


def test_a_clear_difference_has_a_winner(corpus):
    found = judge(pair(corpus, 2.0, 1.9), corpus, "time")
    assert found.winner == "untied"
    assert "does worse than untied in the same training time, with 200 parameters fewer" in found.sentences[0]
    assert judge(pair(corpus, 1.8, 1.9), corpus, "steps").winner == "tied"


def test_a_difference_within_noise_has_none(corpus):
    found = judge(pair(corpus, 1.9001, 1.9), corpus, "time")
    assert found.winner is None
    assert "too close to call" in found.sentences[0]


def test_one_noisy_seed_is_not_enough(corpus):
    found = judge(pair(corpus, 1.93, 1.9, noise=30), corpus, "time")
    assert found.half_width > 0.03
    assert found.winner is None


def test_seeds_that_disagree_settle_nothing(corpus):
    runs = [examined("tied", b, s) for s, b in enumerate([1.90, 1.95, 1.92])]
    runs += [examined("untied", b, s) for s, b in enumerate([1.93, 1.91, 1.93])]
    found = judge(runs, corpus, "steps")
    assert found.winner is None
    assert "takes in zero" in found.sentences[1]


def test_seeds_that_agree_do(corpus):
    runs = [examined("tied", b, s) for s, b in enumerate([1.95, 1.96, 1.955])]
    runs += [examined("untied", b, s) for s, b in enumerate([1.91, 1.92, 1.914])]
    found = judge(runs, corpus, "params")
    assert found.winner == "untied"
    assert "clear of zero" in found.sentences[1]
    assert "3 seeds" in found.sentences[1]


def test_matched_size_is_claimed_only_when_it_is(corpus):
    runs = [examined("tied", 1.95, losses=losses(corpus, 0)), examined("untied", 1.9, losses=losses(corpus, -0.1))]
    assert "parameters" not in judge(runs, corpus, "params").sentences[0]
    runs[1].record["params"] = 1100
    assert "100 parameters fewer" in judge(runs, corpus, "params").sentences[0]


def test_paired_error_is_nothing_for_a_constant_share_and_grows_with_noise(corpus):
    a = losses(corpus, 0)
    assert paired_error(a, a, corpus) == 0
    small, large = (paired_error(losses(corpus, 0, n), a, corpus) for n in (0.1, 1.0))
    assert 0 < small < large
    assert large == pytest.approx(10 * small, rel=1e-3)


def test_bands_hold_equal_text_and_every_token():
    counts = np.array([500, 300, 100, 50, 25, 15, 10, 0])
    targets = np.repeat(np.arange(8), [50, 30, 10, 5, 2, 1, 1, 1])
    found = bands(targets.astype(np.float32), targets, counts, number=2)
    assert [b.tokens for b in found] == [1, 7]
    assert found[0].nats == 0
    assert found[1].nats == pytest.approx(targets[targets > 0].mean())


def test_errors_over_seeds():
    assert mean_and_error([2.0]) == (2.0, None)
    mean, error = mean_and_error([1.0, 2.0, 3.0])
    assert (mean, error) == (2.0, pytest.approx(1 / 3**0.5))
