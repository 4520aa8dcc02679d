"""Sums over blocks of rows, compared with one product of the whole tables; factors, with NumPy's own."""

import numpy as np
import pytest

from tiebeam.lens.gram_factors import cholesky_, invert_lower, least_pivot, whitening
from tiebeam.lens.gram_sums import GramSums

D, V = 24, 300


def tables(tied):
    random = np.random.default_rng(5)
    E = random.standard_normal((V, D)).astype(np.float32)
    return E, 2 * E + 1, E if tied else random.standard_normal((V, D)).astype(np.float32)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("dtype", "near"), [(np.float64, 1e-14), (np.float32, 1e-6)])
def test_the_sums_of_blocks_are_those_of_the_whole_tables(tied, dtype, near):
    E, F, W = tables(tied)
    sums = GramSums(D, dtype, sketched=True)
    for start in range(0, V, 70):  # the last block is short
        sums.add(*(table[start : start + 70] for table in (E, F, W)))
    sums.finish()
    wide = {"E": E.astype(np.float64), "F": F.astype(np.float64), "W": W.astype(np.float64)}
    assert list(sums.products) == ["FF", "FW", "EE", "EW", "WW"]
    for name, found in sums.products.items():
        assert found.dtype == np.float64
        expected = wide[name[0]].T @ wide[name[1]]
        np.testing.assert_allclose(found, expected, atol=near * np.abs(expected).max())
    np.testing.assert_allclose(sums.norms, [np.linalg.norm(wide[t], axis=1) for t in "EW"], rtol=near)
    np.testing.assert_allclose(sums.diagonal, (wide["F"] * wide["W"]).sum(axis=1), atol=100 * near)
    assert sums.one_table is tied
    assert sums.full_rank


def test_a_column_that_others_give_is_not_of_full_rank():
    E, F, W = tables(False)
    sums = GramSums(D, np.float32, sketched=False)
    W[:, 3] = W[:, 1] - W[:, 2]
    sums.add(E, F, W)
    assert not sums.full_rank


@pytest.mark.parametrize("n", [1, 5, 128, 129, 300])
def test_the_inverse_of_a_triangle_equals_the_general_one(n):
    R = np.tril(np.random.default_rng(n).standard_normal((n, n))) / n**0.5 + 2 * np.eye(n)
    expected = np.linalg.inv(R)
    np.testing.assert_allclose(invert_lower(R.copy()), expected, atol=1e-12)


def test_whitening_gives_the_identity():
    E = tables(True)[0].astype(np.float64)
    inverse, rank = whitening(E.T @ E)
    assert rank == D
    np.testing.assert_allclose(inverse @ (E.T @ E) @ inverse.T, np.eye(D), atol=1e-12)


def test_the_least_pivot_does_not_depend_on_the_scale_of_columns():
    G = np.cov(np.random.default_rng(6).standard_normal((D, V)))
    scale = np.logspace(-8, 8, D)
    root = np.diag(np.linalg.cholesky(G)) / np.sqrt(np.diag(G))
    assert least_pivot(G) == pytest.approx(root.min(), rel=1e-5)
    assert least_pivot(G * scale * scale[:, None]) == pytest.approx(root.min(), rel=1e-5)
    G[0] = G[:, 0] = 0
    assert least_pivot(G) == 0


@pytest.mark.parametrize("n", [1, 5, 512, 513, 1100])
@pytest.mark.parametrize(("dtype", "near"), [(np.float64, 1e-12), (np.float32, 1e-4)])
def test_the_factor_in_place_is_that_of_numpy(n, dtype, near):
    X = np.random.default_rng(n).standard_normal((2 * n + 3, n))
    G = X.T @ X
    given = G.astype(dtype)
    assert cholesky_(given) is given
    np.testing.assert_allclose(given, np.linalg.cholesky(G), atol=near * np.sqrt(G.max()))


def test_a_matrix_that_is_not_positive_definite_has_no_factor():
    G = np.eye(1100)
    G[900, 900] = -1.0
    with pytest.raises(np.linalg.LinAlgError):
        cholesky_(G)
