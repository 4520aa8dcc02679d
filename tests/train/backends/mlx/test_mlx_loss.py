"""The chunked loss on MLX matches the plain one and never holds the full logits."""

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed here", exc_type=ImportError)

import torch

from helpers.plain_loss import plain_loss, rel_error
from tiebeam.errors import BadRequest
from tiebeam.nn import tied_cross_entropy as on_torch
from tiebeam.train.backends.mlx.loss import default_chunk, tied_cross_entropy
from tiebeam.train.backends.mlx.tied_embedding import Table

N, V, D = 37, 90, 8


def numbers(seed=0):
    draw = np.random.default_rng(seed)
    h, W = draw.standard_normal((N, D), np.float32), draw.standard_normal((V, D), np.float32)
    return h, W, draw.integers(0, V, N)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("chunk", [1, 10, 37, None])
def test_loss_and_gradients_match_torch(softcap, z_loss, reduction, chunk):
    h, W, targets = numbers()
    options = {"softcap": softcap, "z_loss": z_loss, "reduction": reduction}
    ht, Wt = torch.tensor(h, requires_grad=True), torch.tensor(W, requires_grad=True)
    expected = on_torch(ht, Wt, torch.tensor(targets), **options)
    expected.backward()

    def loss_of(h, W):
        return 1.0 * tied_cross_entropy(h, W, mx.array(targets), chunk=chunk, **options)

    loss, (dh, dW) = mx.value_and_grad(loss_of, argnums=(0, 1))(mx.array(h), mx.array(W))
    np.testing.assert_allclose(np.array(loss), expected.item(), rtol=1e-5)
    np.testing.assert_allclose(np.array(dh), ht.grad.numpy(), atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(np.array(dW), Wt.grad.numpy(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("softcap", [0.1, 1.0, 50.0, 1e4, 1e6, 1e8])
def test_the_softcap_is_exact_at_every_cap(softcap):
    h, W, targets = numbers()
    exact = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (h, W)]
    plain_loss(exact[0], exact[1], torch.tensor(targets), softcap=softcap).backward()

    def loss_of(h, W):
        return tied_cross_entropy(h, W, mx.array(targets), softcap=softcap)

    for found, true in zip(mx.grad(loss_of, argnums=(0, 1))(mx.array(h), mx.array(W)), exact, strict=True):
        assert rel_error(torch.tensor(np.array(found)), true.grad) < 1e-5


def test_the_gradient_is_scaled_by_the_upstream_gradient():
    h, W, targets = (mx.array(a) for a in numbers())
    once = mx.grad(lambda W: tied_cross_entropy(h, W, targets))(W)
    thrice = mx.grad(lambda W: 3.0 * tied_cross_entropy(h, W, targets))(W)
    np.testing.assert_allclose(np.array(thrice), 3 * np.array(once), rtol=1e-5)


def test_without_gradients_the_loss_is_the_same():
    h, W, targets = (mx.array(a) for a in numbers())
    with_them, without = (tied_cross_entropy(h, W, targets, gradients=learn, chunk=7) for learn in (True, False))
    assert float(np.array(with_them)) == float(np.array(without))


def test_the_full_logits_never_exist():
    tokens, vocab, dim, chunk = 2048, 2048, 8, 64
    h, W = mx.random.normal((tokens, dim)), mx.random.normal((vocab, dim))
    targets = mx.random.randint(0, vocab, (tokens,))
    mx.eval(h, W, targets)
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    found = mx.value_and_grad(lambda h, W: tied_cross_entropy(h, W, targets, chunk=chunk), argnums=(0, 1))(h, W)
    mx.eval(found)
    logits = 4 * tokens * vocab
    assert mx.get_peak_memory() - before < logits / 6  # chunks of 1/32, four of them, and the small ends


@pytest.mark.parametrize(("tokens", "vocab"), [(1, 10), (2048, 2048), (8192, 200_000), (5, 10**9)])
def test_chunks_are_equal_and_cover_the_tokens(tokens, vocab):
    chunk = default_chunk(tokens, vocab)
    assert 1 <= chunk <= tokens
    assert chunk * 4 * vocab <= 32 << 20 or chunk <= 128


def test_a_tied_table_has_one_gradient():
    _, W, targets = numbers()
    ids = np.random.default_rng(1).integers(0, V, N)
    table = Table(V, D, input_grad_scale=0.5)

    def loss_of(W, doubled):
        table.weight = W
        x, alias = table.embed(mx.array(ids))
        return tied_cross_entropy(x * doubled, alias, mx.array(targets))

    found = mx.grad(loss_of)(mx.array(W), 2.0)
    Wt = torch.tensor(W, requires_grad=True)
    halved = 0.5 * Wt[ids] + 0.5 * Wt[ids].detach()  # the value once, its gradient at half
    torch.nn.functional.cross_entropy(2.0 * halved @ Wt.T, torch.tensor(targets)).backward()
    np.testing.assert_allclose(np.array(found), Wt.grad.numpy(), atol=1e-5)


def test_mismatched_shapes_are_refused():
    h, W, targets = (mx.array(a) for a in numbers())
    with pytest.raises(BadRequest, match=r"\[37, 8\].*\[90, 8\].*\[36\]"):
        tied_cross_entropy(h, W, targets[:-1])
