"""Pseudo-inverse tying, against dense matrices: W = Z T, E = Z T^-1, and each is the other's pseudo-inverse."""

import pytest
import torch

from tiebeam.errors import BadRequest
from tiebeam.nn import GPT, GPTConfig
from tiebeam.nn.pseudo_inverse import SPDMap, orthonormalize_


def sizes(**changes):
    return GPTConfig(**{"vocab": 50, "dim": 16, "layers": 1, "heads": 2, "context": 16, **changes})


def moved(config):
    """A model whose map and table are not those of the start, brought back to the constraint."""
    torch.manual_seed(1)
    model = GPT(config)
    with torch.no_grad():
        model.spd.weight.add_(0.3 * torch.randn_like(model.spd.weight))
        model.table.weight.add_(0.3 * torch.randn_like(model.table.weight))
    model.restore_constraints()
    return model


def test_the_map_is_symmetric_positive_definite_whatever_its_parameters_are():
    torch.manual_seed(0)
    T = SPDMap(12).double()
    torch.nn.init.normal_(T.weight)
    dense = T(torch.eye(12, dtype=torch.float64)).detach()
    torch.testing.assert_close(dense, dense.t())
    assert torch.linalg.eigvalsh(dense).min() > 0
    L = T.factor().detach()
    torch.testing.assert_close(dense, L @ L.t())
    x = torch.randn(3, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(T.inverse(x), x @ torch.linalg.inv(dense))


def test_the_projection_gives_the_polar_factor():
    Z = torch.randn(40, 8, dtype=torch.float64)
    U, _, V = torch.linalg.svd(Z, full_matrices=False)
    torch.testing.assert_close(orthonormalize_(Z.clone()), U @ V)
    again = U @ V
    torch.testing.assert_close(orthonormalize_(again.clone()), again)


def test_embedding_and_head_are_each_others_pseudo_inverse():
    model = moved(sizes(pseudo_inverse=True))
    _, tensors = model.export(fold=True)
    E, W = tensors["model.embed_tokens.weight"].double(), tensors["lm_head.weight"].double()
    torch.testing.assert_close(E.t() @ W, torch.eye(16, dtype=torch.float64), rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.linalg.pinv(W).t(), E, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("arch", ["standard", "golf"])
def test_loss_and_gradients_are_those_of_the_dense_pair(arch):
    model = moved(sizes(arch=arch, pseudo_inverse=True)).double()
    ids = torch.randint(50, (2, 12))
    loss = model(ids[:, :-1], ids[:, 1:])
    loss.backward()
    Z = model.table.weight.detach().clone().requires_grad_()
    raw = model.spd.weight.detach().clone().requires_grad_()
    L = torch.tril(raw, -1) + torch.diag(raw.diagonal().exp())
    T = L @ L.t()
    h = model._layers((Z @ torch.linalg.inv(T))[ids[:, :-1]])
    logits = h @ (Z @ T).t()
    expected = torch.nn.functional.cross_entropy(logits.reshape(-1, 50), ids[:, 1:].reshape(-1))
    dZ, dL = torch.autograd.grad(expected, (Z, raw))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(model.table.weight.grad, dZ)
    torch.testing.assert_close(model.spd.weight.grad, dL)


def test_it_adds_one_square_matrix_and_is_not_mixed_with_other_ties():
    assert GPT(sizes(pseudo_inverse=True)).size == GPT(sizes()).size + 16 * 16
    for other in ({"tie": False}, {"tie": 0.5}, {"bridge": True}, {"embed_dim": 8}):
        with pytest.raises(BadRequest, match="tie of its own"):
            sizes(pseudo_inverse=True, **other)
    with pytest.raises(BadRequest, match="at least dim=16"):
        sizes(pseudo_inverse=True, vocab=15)
