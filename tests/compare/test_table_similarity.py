"""Likeness of tables, on tables whose likeness is known."""

import numpy as np
import pytest

from tiebeam.compare.table_similarity import (
    alignment,
    chance_overlap,
    drift,
    knn_overlap,
    map_cosine,
    procrustes,
    spectrum,
)

RANDOM = np.random.default_rng(0)
A = RANDOM.standard_normal((300, 12))


def test_a_rotated_table_is_the_same_by_every_measure():
    turn = np.linalg.qr(RANDOM.standard_normal((12, 12)))[0]
    found = alignment(A, 3 * A @ turn + 5)
    assert found["map_cosine"] == pytest.approx(1, abs=1e-4)
    assert found["procrustes"] == pytest.approx(1)
    assert found["knn"] == pytest.approx(1)


def test_a_sheared_table_is_known_to_a_map_but_not_to_a_rotation():
    shear = RANDOM.standard_normal((12, 12)) * np.linspace(0.05, 4, 12)
    assert map_cosine(A, A @ shear) > 0.999
    assert procrustes(A, A @ shear) < 0.95


def test_unrelated_tables_have_nothing_in_common():
    other = RANDOM.standard_normal((300, 12))
    assert abs(map_cosine(A, other)) < 0.1
    assert procrustes(A, other) < 0.4
    assert knn_overlap(A, other) == pytest.approx(chance_overlap(300), abs=0.02)


def test_tables_of_different_width_can_be_held_together():
    assert 0 < alignment(A, A[:, :5])["procrustes"] < 1


def test_neighbours_are_those_of_the_full_matrix_of_cosines():
    from tiebeam.compare.table_similarity import _centred, _nearest

    unit = _centred(A) / np.linalg.norm(_centred(A), axis=1, keepdims=True)
    scores = unit @ unit.T
    np.fill_diagonal(scores, -2)
    slow = np.argsort(-scores, axis=1)[:, :7]
    assert (np.sort(_nearest(_centred(A), 7, block=64), axis=1) == np.sort(slow, axis=1)).all()


def test_drift_of_a_doubled_table():
    found = drift(A, 2 * A)
    assert found["relative"] == pytest.approx(1)
    assert found["cosine"] == pytest.approx(1)
    assert drift(np.zeros((3, 2)), np.ones((3, 2)))["cosine"] == 0  # a head that began at zero


def test_spectrum_is_shares():
    assert spectrum(A).sum() == pytest.approx(1)
    assert (np.diff(spectrum(A)) <= 0).all()
