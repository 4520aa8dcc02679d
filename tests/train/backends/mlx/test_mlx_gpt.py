"""The model on MLX matches torch: same weights give the same logits, loss and gradients."""

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed here", exc_type=ImportError)

import torch

from helpers.mlx_twins import VOCAB, batches, config, flat, furthest, torch_gradients, twins
from tiebeam import nn
from tiebeam.errors import BadRequest
from tiebeam.train.backends import mlx
from tiebeam.train.backends.mlx.gradients import accumulated, provenance

SHAPES = [
    {"arch": "standard", "tie": True},
    {"arch": "standard", "tie": False},
    {"arch": "standard", "tie": True, "bridge": True},
    {"arch": "standard", "tie": True, "embed_dim": 8},
    {"arch": "standard", "tie": True, "input_grad_scale": 0.3},
    {"arch": "golf", "tie": True, "softcap": 15.0},
    {"arch": "golf", "tie": False, "softcap": 2.0},
    {"arch": "golf", "tie": True, "embed_dim": 24},
    {"arch": "golf", "tie": False, "bridge": True, "kv_heads": 4, "layers": 4},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("accumulate", "z_loss"), [(1, 0.0), (2, 1e-3)])
def test_same_weights_same_loss_and_gradients(shape, accumulate, z_loss):
    one, other = twins(config(**shape))
    given = batches(accumulate)
    expected = torch_gradients(one, given, z_loss=z_loss)
    found = accumulated(other, iter(given), accumulate, z_loss=z_loss, chunk=20)
    assert found.loss == pytest.approx(expected, abs=1e-4)
    assert furthest(flat(found.tree), {n: p.grad.numpy() for n, p in one.named_parameters()}) < 1e-3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_same_weights_same_logits(shape):
    one, other = twins(config(**shape))
    ((x, _),) = batches(1)
    with torch.no_grad():
        expected = one(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(np.array(other(mx.array(x))), expected, atol=1e-4)


@pytest.mark.parametrize("tie", [True, False])
def test_the_gradient_is_split_as_in_torch(tie):
    one, other = twins(config(tie=tie))
    given = batches(2)
    if tie:
        with nn.gradient_provenance(one.table) as watch:
            torch_gradients(one, given)
        expected = watch.result
    else:
        torch_gradients(one, given)
        a, b = one.table.weight.grad, one.lm_head.weight.grad
        expected = nn.Provenance(
            a.norm().item(), b.norm().item(), torch.cosine_similarity(a.flatten(), b.flatten(), 0).item()
        )
    found = provenance(other, accumulated(other, iter(given), 2))
    assert found == pytest.approx(expected.to_dict(), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_new_model_has_torchs_initial_distributions(shape):
    shape = config(**{**shape, "dim": 64, "vocab": 500, "mlp_dim": 128})
    torch.manual_seed(0)
    expected = {name: tensor.detach().numpy() for name, tensor in nn.GPT(shape).state_dict().items()}
    found = flat(mlx.GPT(shape, seed=0).parameters())
    assert {n: a.shape for n, a in found.items()} == {n: a.shape for n, a in expected.items()}
    for name in expected:
        spread = float(expected[name].std())
        assert float(found[name].mean()) == pytest.approx(float(expected[name].mean()), abs=0.1 * spread + 1e-7), name
        assert float(found[name].std()) == pytest.approx(spread, rel=0.1, abs=1e-7), name


def test_a_seed_determines_the_weights():
    a, b, c = (flat(mlx.GPT(config(), seed=seed).parameters()) for seed in (0, 0, 1))
    assert furthest(a, b) == 0
    assert furthest(a, c) > 0


def test_a_tied_model_has_one_table_until_it_is_untied():
    model = mlx.GPT(config(tie=0.5))
    assert model.tied
    assert "lm_head.weight" not in model.tensors()
    before, ids = model.size, mx.array(batches(1)[0][0])
    logits = np.array(model(ids))
    model.untie()
    assert model.size == before + VOCAB * 16
    np.testing.assert_array_equal(np.array(model(ids)), logits)
    with pytest.raises(BadRequest, match="already untied"):
        model.untie()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_checkpoint_matches_torch(shape):
    one, other = twins(config(**{**shape, "softcap": None}))
    (config_of_one, expected), (config_of_other, found) = (m.export(fold=m.config.foldable) for m in (one, other))
    assert config_of_other == config_of_one
    assert furthest(found, {name: tensor.numpy() for name, tensor in expected.items()}) < 1e-6


def test_weights_of_another_shape_are_refused():
    with pytest.raises(BadRequest, match="do not fit"):
        mlx.GPT(config()).load(twins(config(tie=False))[1].export()[1])


def test_an_input_longer_than_the_context_is_refused():
    with pytest.raises(BadRequest, match="17 tokens exceed the context of 16"):
        mlx.GPT(config())(mx.zeros((1, 17), mx.int32))
