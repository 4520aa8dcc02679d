"""Differences and their intervals, against slow and obvious twins: resampling, and numbers from tables."""

import numpy as np
import pytest

from tiebeam.compare.paired_statistics import (
    Estimate,
    document_error,
    estimate,
    half_width,
    interpolation_weights,
    median_ratio,
    seeds_needed,
    t95,
)

RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(200, 4000, 60).astype(float)


def differences(seeds: int, mean: float = 0.02, seed_spread: float = 0.01, document_spread: float = 0.05):
    """Nats per seed and document: a common effect, one of the seed, one of the document, and noise."""
    bits = (
        mean
        + seed_spread * RANDOM.standard_normal((seeds, 1))
        + document_spread * RANDOM.standard_normal((1, len(BYTES)))
        + 0.02 * RANDOM.standard_normal((seeds, len(BYTES)))
    )
    return bits * BYTES * np.log(2)


def test_document_error_equals_that_of_resampled_documents():
    nats = differences(1)[0]
    means = []
    for _ in range(4000):
        chosen = RANDOM.integers(0, len(BYTES), len(BYTES))
        means.append(nats[chosen].sum() / BYTES[chosen].sum() / np.log(2))
    assert document_error(nats, BYTES) == pytest.approx(np.std(means), rel=0.08)


def test_standard_error_equals_that_of_resampled_seeds_and_documents():
    nats = differences(12)
    found = estimate(nats, BYTES)
    means = []
    for _ in range(4000):
        seeds, chosen = RANDOM.integers(0, 12, 12), RANDOM.integers(0, len(BYTES), len(BYTES))
        means.append(nats[seeds][:, chosen].sum() / 12 / BYTES[chosen].sum() / np.log(2))
    error = np.sqrt(found.errors["documents"] ** 2 + found.errors["seeds"] ** 2)
    assert error == pytest.approx(np.std(means), rel=0.12)
    assert found.difference == pytest.approx(nats.sum() / 12 / BYTES.sum() / np.log(2))


def test_the_interval_covers_the_truth_in_about_95_of_100_repetitions():
    covered = 0
    for _ in range(400):
        found = estimate(differences(4, mean=0.02), BYTES)
        covered += found.low <= 0.02 <= found.high
    assert 0.92 <= covered / 400 <= 0.995


def test_one_seed_allows_for_variation_between_seeds():
    found = estimate(np.full((1, len(BYTES)), 0.001) * BYTES, BYTES)  # the same difference in every document
    assert found.errors["documents"] == pytest.approx(0, abs=1e-12)
    assert found.high - found.low > 4 * 0.9 * found.errors["seeds"] > 0


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (2, 4.303), (4.5, 2.66), (11, 2.201), (25, 2.060),
                                                   (1e9, 1.960)])  # fmt: skip
def test_quantiles_of_students_t(freedom, quantile):
    assert t95(freedom) == pytest.approx(quantile, rel=0.005)


def test_one_error_alone_has_its_own_quantile():
    assert half_width([(0.1, 2), (0.0, 19)]) == pytest.approx(0.4303)


def test_more_seeds_are_needed_for_a_smaller_difference():
    def found(difference):
        return Estimate(difference, -1, 1, {"documents": 0.001, "seeds": 0.01, "clock": 0.0})

    few, many = seeds_needed(found(0.02), 1), seeds_needed(found(0.01), 1)
    assert few is not None
    assert many is not None
    assert 1 < few < many
    assert seeds_needed(found(0.0001), 1) is None


def test_interpolation_is_exact_for_a_parabola_and_at_the_points():
    points = [1.0, 2.0, 4.0, 7.0]
    values = np.array([3 * x * x - x + 2 for x in points])
    assert interpolation_weights(points, 3.0) @ values == pytest.approx(3 * 9 - 3 + 2)
    for i, x in enumerate(points):
        assert interpolation_weights(points, x).tolist() == [float(j == i) for j in range(4)]


def test_two_points_are_joined_by_a_line_and_one_is_constant():
    assert interpolation_weights([0.0, 10.0], 2.5).tolist() == [0.75, 0.25]
    assert interpolation_weights([5.0], 2.5).tolist() == [1.0]


def test_a_stall_in_one_slice_does_not_move_the_ratio():
    first = RANDOM.uniform(0.9, 1.1, 40)
    second = first * 1.05 * np.exp(0.01 * RANDOM.standard_normal(40))
    calm, error = median_ratio(first.tolist(), second.tolist())
    second[7] += 30
    stalled, _ = median_ratio(first.tolist(), second.tolist())
    assert calm == pytest.approx(1.05, rel=0.01)
    assert stalled == pytest.approx(calm, rel=0.003)
    assert 0.0005 < error < 0.005
