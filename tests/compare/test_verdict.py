"""The verdict: winners, uncertainty, and its text."""

from types import SimpleNamespace

import numpy as np
import pytest

from tiebeam.compare.held_out_losses import loss_by_frequency, mean_and_standard_error, paired_standard_error
from tiebeam.compare.variants import VARIANTS, VariantConfig
from tiebeam.compare.verdict import compute_verdict
from tiebeam.train import Settings


def metrics(variant, bpb, seed=0, params=1000, losses=None, steps=100, minutes=None):
    run = SimpleNamespace(config=VariantConfig(VARIANTS[variant], Settings(steps=steps), params), seed=seed)
    record = {"val_bpb": bpb, "params": params, "steps": steps, "settings": {"minutes": minutes}}
    return SimpleNamespace(run=run, record=record, losses=losses)


def losses(corpus, shift, noise=0.0, seed=0):
    size = len(corpus.val) - 1
    return (np.full(size, 2.0 + shift) + noise * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def pair(corpus, a, b, noise=0.01, **more):
    return [
        metrics("tied", a, losses=losses(corpus, 0, noise, 1), **more),
        metrics("untied", b, losses=losses(corpus, 0.1 * np.sign(b - a), noise, 2), params=1200),
    ]


def test_a_clear_difference_has_a_winner(corpus):
    found = compute_verdict(pair(corpus, 2.0, 1.9), corpus, "time")
    assert found.winner == "untied"
    assert found.sentences[0] == (
        "Untied is better than tied after 100 steps each: 1.9000 vs 2.0000 bits per byte, 5.0% lower. "
        "Tied has 200 fewer parameters (16.7%)."
    )
    assert compute_verdict(pair(corpus, 1.8, 1.9), corpus, "steps").winner == "tied"


def test_a_difference_within_noise_has_no_winner(corpus):
    found = compute_verdict(pair(corpus, 1.9001, 1.9), corpus, "time")
    assert found.winner is None
    assert found.sentences[0].startswith("No clear difference after 100 steps each: 1.9001 and 1.9000 bits per byte.")


def test_one_noisy_seed_has_no_winner(corpus):
    found = compute_verdict(pair(corpus, 1.93, 1.9, noise=30), corpus, "time")
    assert found.half_width > 0.03
    assert found.winner is None


def test_seeds_that_disagree_have_no_winner(corpus):
    runs = [metrics("tied", b, s) for s, b in enumerate([1.90, 1.95, 1.92])]
    runs += [metrics("untied", b, s) for s, b in enumerate([1.93, 1.91, 1.93])]
    found = compute_verdict(runs, corpus, "steps")
    assert found.winner is None
    assert "95% CI -0.0896 to 0.0896, includes 0; 3 seeds" in found.sentences[1]


def test_seeds_that_agree_have_a_winner(corpus):
    runs = [metrics("tied", b, s) for s, b in enumerate([1.95, 1.96, 1.955])]
    runs += [metrics("untied", b, s) for s, b in enumerate([1.91, 1.92, 1.914])]
    found = compute_verdict(runs, corpus, "params")
    assert found.winner == "untied"
    assert found.sentences[1].startswith(
        "Untied minus tied: -0.0403 bits per byte (95% CI -0.0418 to -0.0389, excludes 0; 3"
    )


def test_equal_time_states_the_steps_of_each_variant(corpus):
    runs = [
        metrics("tied", 1.9, losses=losses(corpus, 0), steps=128, minutes=1.0),
        metrics("untied", 1.9, losses=losses(corpus, 0), steps=86, minutes=1.0, params=1200),
    ]
    found = compute_verdict(runs, corpus, "time").sentences[0]
    assert found.startswith("No clear difference after 1 min each (tied 128 steps, untied 86): ")
    assert found.endswith(" Tied has 200 fewer parameters (16.7%).")


def test_matched_parameters_are_stated_only_if_the_counts_are_equal(corpus):
    runs = [metrics("tied", 1.95, losses=losses(corpus, 0)), metrics("untied", 1.9, losses=losses(corpus, -0.1))]
    found = compute_verdict(runs, corpus, "params").sentences[0]
    assert "at matched parameters after 100 steps each" in found
    assert "Both have the same number of parameters." in found
    runs[1].record["params"] = 1100
    found = compute_verdict(runs, corpus, "params").sentences[0]
    assert "matched" not in found
    assert "Tied has 100 fewer parameters (9.1%)." in found


def test_paired_standard_error_is_zero_for_equal_losses_and_grows_with_noise(corpus):
    a = losses(corpus, 0)
    assert paired_standard_error(a, a, corpus) == 0
    small, large = (paired_standard_error(losses(corpus, 0, n), a, corpus) for n in (0.1, 1.0))
    assert 0 < small < large
    assert large == pytest.approx(10 * small, rel=1e-3)


def test_frequency_bands_have_equal_text_and_cover_every_token():
    counts = np.array([500, 300, 100, 50, 25, 15, 10, 0])
    targets = np.repeat(np.arange(8), [50, 30, 10, 5, 2, 1, 1, 1])
    found = loss_by_frequency(targets.astype(np.float32), targets, counts, number=2)
    assert [b.tokens for b in found] == [1, 7]
    assert found[0].nats == 0
    assert found[1].nats == pytest.approx(targets[targets > 0].mean())


def test_standard_error_over_seeds():
    assert mean_and_standard_error([2.0]) == (2.0, None)
    mean, error = mean_and_standard_error([1.0, 2.0, 3.0])
    assert (mean, error) == (2.0, pytest.approx(1 / 3**0.5))
