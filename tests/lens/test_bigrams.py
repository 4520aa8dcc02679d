"""Gradients compared with finite differences, bits with sums, bounds with explicit matrices."""

import numpy as np
import pytest

from tiebeam.lens import bigrams as module
from tiebeam.lens.bigram_counts import count_bigrams
from tiebeam.lens.bigrams import FORMS, bits, fit, smoothed_bigram, unigram
from tiebeam.lens.rank_bounds import bounds, pmi

RANDOM = np.random.default_rng(0)


def chain(tokens, vocab=12, seed=0):
    """Asymmetric text: the next token is usually the current one plus 1."""
    random = np.random.default_rng(seed)
    out = [0]
    for _ in range(tokens - 1):
        out.append((out[-1] + 1) % vocab if random.random() < 0.8 else int(random.integers(vocab)))
    return count_bigrams(np.array(out), vocab)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_equal_finite_differences(form):
    counts = chain(400)
    weights = module._start(form, 12, 4, np.random.default_rng(1))
    weights = {k: w.astype(np.float64) for k, w in weights.items()}
    dense = counts.dense().astype(np.float64)

    def loss(w):
        return bits(counts, module._log_probabilities(form, w)) * np.log(2)

    found = module._gradients(form, weights, dense)
    for key, matrix in weights.items():
        for _ in range(5):
            at = tuple(RANDOM.integers(n) for n in matrix.shape)
            up, down = ({k: w.copy() for k, w in weights.items()} for _ in range(2))
            up[key][at] += 1e-5
            down[key][at] -= 1e-5
            assert found[key][at] == pytest.approx((loss(up) - loss(down)) / 2e-5, abs=2e-6), (key, at)


def test_two_tables_learn_an_asymmetry_that_one_cannot():
    train, dev, test = chain(6000, seed=1), chain(2000, seed=2), chain(2000, seed=3)
    found = {form: fit(form, train, dev, test, dim=4, steps=150).bits for form in FORMS}
    floor = unigram(train, test).bits
    assert found["EE"] > found["EDE"] - 1e-3
    assert found["EE"] > found["EME"]
    assert found["EW"] < floor - 0.5
    assert found["EE"] > found["EW"] + 0.3


def test_parameters_are_counted():
    counts = chain(500)
    sizes = {form: fit(form, counts, counts, counts, dim=4, steps=1).params for form in FORMS}
    assert sizes == {"EE": 48, "EDE": 48, "EME": 64, "EMLPE": 48 + 64, "EW": 96}


def test_the_smoothed_bigram_beats_the_unigram():
    train, dev, test = chain(4000, seed=1), chain(1000, seed=2), chain(1000, seed=3)
    assert smoothed_bigram(train, dev, test).bits < unigram(train, test).bits
    assert unigram(train, test).bits == pytest.approx(np.log2(12), abs=0.05)


def psd_part(S, d):
    values, vectors = np.linalg.eigh(S)
    keep = [i for i in np.argsort(-values)[:d] if values[i] > 0]
    return (vectors[:, keep] * values[keep]) @ vectors[:, keep].T


@pytest.mark.parametrize("d", [1, 3, 9])
def test_bounds_equal_the_residuals_of_explicit_approximations(d):
    M = RANDOM.standard_normal((9, 9))
    energy = (M**2).sum()
    u, s, v = np.linalg.svd(M)
    S = (M + M.T) / 2
    values, vectors = np.linalg.eigh(S)
    top = np.argsort(-np.abs(values))[:d]
    symmetric = (vectors[:, top] * values[top]) @ vectors[:, top].T
    found = bounds(M, d)
    assert found.any == pytest.approx(((M - (u[:, :d] * s[:d]) @ v[:d]) ** 2).sum() / energy)
    assert found.symmetric == pytest.approx(((M - symmetric) ** 2).sum() / energy)
    assert found.semidefinite == pytest.approx(((M - psd_part(S, d)) ** 2).sum() / energy)
    assert found.antisymmetric == pytest.approx((((M - M.T) / 2) ** 2).sum() / energy)
    assert found.negative == pytest.approx((values[values < 0] ** 2).sum() / (S**2).sum())


def test_no_random_semidefinite_matrix_beats_the_bound():
    M = RANDOM.standard_normal((6, 6))
    bound = bounds(M, 2).semidefinite * (M**2).sum()
    for _ in range(200):
        B = RANDOM.standard_normal((6, 2)) * RANDOM.random()
        assert ((M - B @ B.T) ** 2).sum() >= bound - 1e-9


def test_a_matrix_of_zeros_has_bounds():
    assert bounds(np.zeros((4, 4)), 2).any == 0


def test_independent_tokens_have_little_mutual_information():
    tokens = np.random.default_rng(3).integers(0, 8, 200_000)
    assert np.abs(pmi(count_bigrams(tokens, 8))).max() < 0.05
