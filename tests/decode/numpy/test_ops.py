"""NumPy ops, each compared with a slow reference implementation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tiebeam.decode.numpy import ops, rope
from tiebeam.errors import UnreadableInput
from tiebeam.families.spec import Rope

RANDOM = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_erf_equals_math_erf(dtype):
    x = np.concatenate([np.linspace(-6, 6, 4001), [0.0, -0.0, 30.0, -30.0]]).astype(dtype)
    expected = [math.erf(v) for v in x.tolist()]
    np.testing.assert_allclose(ops.erf(x), expected, rtol=0, atol=5e-7 if dtype is np.float32 else 1e-15)


@pytest.mark.parametrize("name", ops.ACTIVATIONS)
def test_activations_equal_torch(name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    x = np.concatenate([np.linspace(-20, 20, 2001), [-1e4, 1e4]]).astype(np.float32)
    expected = transformers.activations.ACT2FN[name](torch.from_numpy(x)).numpy()
    with np.errstate(over="ignore"):
        found = ops.ACTIVATIONS[name](x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_token_is_normalised_like_many(dtype):
    random = np.random.default_rng(0)
    x, gain, bias = (random.standard_normal(shape).astype(dtype) for shape in ((3, 64), 64, 64))
    tolerance = 1e-6 if dtype == np.float32 else 1e-14
    for many, one in (
        (ops.rms_norm(x, gain, 1e-5), [ops.rms_norm(row[None], gain, 1e-5) for row in x]),
        (ops.layer_norm(x, gain, bias, 1e-5), [ops.layer_norm(row[None], gain, bias, 1e-5) for row in x]),
    ):
        np.testing.assert_allclose(np.concatenate(one), many, rtol=tolerance, atol=tolerance)
        assert one[0].dtype == dtype


def test_numbers_are_finite_even_where_their_squares_are_not():
    assert ops.all_finite(np.array([[1e30, -1e30]], np.float32))
    assert ops.all_finite(np.empty((0, 4), np.float32))
    for bad in (np.nan, np.inf, -np.inf):
        assert not ops.all_finite(np.array([[0.0, bad, 1.0]], np.float32))


def test_a_norm_of_many_rows_equals_the_norm_of_each(monkeypatch):
    x, gain, bias = draw(7, 16), draw(16), draw(16)
    expected = ops.layer_norm(x, gain, bias, 1e-5)
    monkeypatch.setattr(ops, "_CACHED", 48)
    assert [rows.stop - rows.start for rows in ops.row_blocks(x)] == [3, 3, 3]
    np.testing.assert_array_equal(ops.layer_norm(x, gain, bias, 1e-5), expected)


def test_norms_keep_float32():
    x, gain = draw(3, 8), draw(8)
    for y in (ops.rms_norm(x, gain, 1e-6), ops.layer_norm(x, gain, gain, 1e-5), ops.rms_norm(x, None, 1e-6)):
        assert y.dtype == np.float32


def attention_one_by_one(q, k, v, start, window, cap):  # [T, H, N], [K, S, N], [K, S, N] -> [T, H * N]
    T, H, N = q.shape
    out = np.zeros((T, H, N))
    for t in range(T):
        for h in range(H):
            g = h * k.shape[0] // H
            seen = [s for s in range(start + t + 1) if window is None or s > start + t - window]
            scores = np.array([float(q[t, h].astype(np.float64) @ k[g, s]) for s in seen])
            if cap:
                scores = cap * np.tanh(scores / cap)
            weights = np.exp(scores - scores.max())
            out[t, h] = sum(w * v[g, s] for w, s in zip(weights / weights.sum(), seen, strict=True))
    return out.reshape(T, H * N)


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("T", "start"), [(1, 0), (1, 9), (4, 0), (4, 6), (7, 2)])
@pytest.mark.parametrize("K", [1, 2, 4])
@pytest.mark.parametrize("queries", [128, 3])  # one block, or several of which the last is shorter
def test_attention_equals_a_plain_loop(K, T, start, window, cap, queries, monkeypatch):
    monkeypatch.setattr(ops, "_QUERIES", queries)
    q, k, v = draw(T, 4, 8), draw(K, start + T, 8), draw(K, start + T, 8)
    found = ops.attention(q, k, v, window, cap)
    np.testing.assert_allclose(found, attention_one_by_one(q, k, v, start, window, cap), rtol=0, atol=1e-5)


def test_rotary_embedding_rotates_pairs_and_keeps_other_dimensions():
    x = draw(5, 2, 8)
    cos, sin = rope.tables(Rope(4, 100.0), 5, np.dtype(np.float32))
    y = ops.rotate(x, cos, sin)
    for t in range(5):
        for j, frequency in enumerate((1.0, 0.1)):
            z = complex(*x[t, 1, [j, j + 2]]) * np.exp(1j * t * frequency)
            np.testing.assert_allclose(y[t, 1, [j, j + 2]], [z.real, z.imag], atol=1e-6)
    np.testing.assert_array_equal(y[..., 4:], x[..., 4:])


def test_log_softmax_sums_to_one_for_large_scores():
    z = draw(3, 1000) * 50
    p = np.exp(ops.log_softmax(z))
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "scaling", "message"),
    [
        ("linear", {}, "needs a positive factor; the config has None"),
        ("linear", {"factor": -1}, "needs a positive factor; the config has -1"),
        ("longrope", {"original_max_position_embeddings": 8, "short_factor": [1.0]}, "4 positive numbers in short_"),
        ("factors", {"factors": "many"}, "4 positive numbers in factors"),
    ],
)
def test_rotary_scalings_without_their_parameters_are_refused(kind, scaling, message):
    with pytest.raises(UnreadableInput, match=message):
        rope.frequencies(Rope(8, 10000.0, kind, scaling), 4)
