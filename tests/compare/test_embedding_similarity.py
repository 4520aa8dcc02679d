"""Similarity of vocabulary matrices, on matrices whose similarity is known."""

import numpy as np
import pytest

from tiebeam.compare.embedding_similarity import (
    alignment,
    drift,
    expected_knn_overlap,
    knn_overlap,
    map_cosine,
    procrustes,
    spectrum,
)

RANDOM = np.random.default_rng(0)
A = RANDOM.standard_normal((300, 12))


def test_a_rotated_matrix_is_identical_by_every_measure():
    turn = np.linalg.qr(RANDOM.standard_normal((12, 12)))[0]
    found = alignment(A, 3 * A @ turn + 5)
    assert found["map_cosine"] == pytest.approx(1, abs=1e-4)
    assert found["procrustes"] == pytest.approx(1)
    assert found["knn"] == pytest.approx(1)


def test_a_sheared_matrix_matches_by_linear_map_but_not_by_rotation():
    shear = RANDOM.standard_normal((12, 12)) * np.linspace(0.05, 4, 12)
    assert map_cosine(A, A @ shear) > 0.999
    assert procrustes(A, A @ shear) < 0.95


def test_random_matrices_are_not_similar():
    other = RANDOM.standard_normal((300, 12))
    assert abs(map_cosine(A, other)) < 0.1
    assert procrustes(A, other) < 0.4
    assert knn_overlap(A, other) == pytest.approx(expected_knn_overlap(300), abs=0.02)


def test_matrices_of_different_width_can_be_compared():
    assert 0 < alignment(A, A[:, :5])["procrustes"] < 1


def test_nearest_rows_equal_those_of_the_full_cosine_matrix():
    from tiebeam.compare.embedding_similarity import _centred, _nearest

    unit = _centred(A) / np.linalg.norm(_centred(A), axis=1, keepdims=True)
    scores = unit @ unit.T
    np.fill_diagonal(scores, -2)
    slow = np.argsort(-scores, axis=1)[:, :7]
    assert (np.sort(_nearest(_centred(A), 7, block=64), axis=1) == np.sort(slow, axis=1)).all()


def test_drift_of_a_doubled_matrix():
    found = drift(A, 2 * A)
    assert found["relative"] == pytest.approx(1)
    assert found["cosine"] == pytest.approx(1)
    assert drift(np.zeros((3, 2)), np.ones((3, 2)))["cosine"] == 0  # an LM head initialized to zero


def test_spectrum_sums_to_one_and_descends():
    assert spectrum(A).sum() == pytest.approx(1)
    assert (np.diff(spectrum(A)) <= 0).all()
