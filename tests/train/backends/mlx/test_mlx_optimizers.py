"""The optimizers on MLX update every parameter as torch does, step by step."""

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed here", exc_type=ImportError)

import mlx.optimizers as optim
import torch
from mlx.utils import tree_unflatten

from helpers.mlx_twins import config, flat, furthest, twins, weights_of
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.train import LearningRates, make_optimizers
from tiebeam.train.backends import mlx

RATES = LearningRates(matrices=0.02, table=0.01, embed=0.3, head=0.004, scalars=0.05, single=0.002)


@pytest.fixture(autouse=True)
def in_float32(monkeypatch):
    """torch's Muon takes bfloat16 for its steps where the CPU has it."""
    monkeypatch.setattr("tiebeam.train.muon.fast_dtype", lambda device: torch.float32)


def step_both(one, other, torch_optimizers, mlx_optimizers, number):
    """The same made-up gradients through both, at a rate and a momentum that change."""
    draw = torch.Generator().manual_seed(number)
    given = {name: torch.randn(p.shape, generator=draw) * 0.1 for name, p in one.named_parameters()}
    for name, parameter in one.named_parameters():
        parameter.grad = given[name].clone()
    torch_optimizers.set(1.0 / (1 + number), 0.85 + 0.01 * number)
    torch_optimizers.step()
    mlx_optimizers.set(1.0 / (1 + number), 0.85 + 0.01 * number)
    mlx_optimizers.step(tree_unflatten([(name, mx.array(g.numpy())) for name, g in given.items()]))


@pytest.mark.parametrize("preset", ["muon", "adamw"])
@pytest.mark.parametrize("shape", [{}, {"tie": False}, {"arch": "golf"}, {"arch": "golf", "tie": False}], ids=str)
def test_every_step_matches_torch(preset, shape):
    one, other = twins(config(**shape))
    on_torch, on_mlx = make_optimizers(one.roles(), RATES, preset), mlx.Optimizers(other, RATES, preset)
    for number in range(6):
        step_both(one, other, on_torch, on_mlx, number)
        assert furthest(flat(other.parameters()), weights_of(one)) < 1e-4, number


@pytest.mark.parametrize("preset", ["muon", "adamw"])
def test_steps_after_untying_match_torch(preset):
    one, other = twins(config(tie=0.5))
    on_torch, on_mlx = make_optimizers(one.roles(), RATES, preset), mlx.Optimizers(other, RATES, preset)
    for number in range(6):
        if number == 3:
            one.untie(on_torch)
            on_mlx.untie()
        step_both(one, other, on_torch, on_mlx, number)
    assert not other.tied
    assert furthest(flat(other.parameters()), weights_of(one)) < 1e-4


def test_the_same_parameters_have_the_same_roles():
    for shape in ({}, {"tie": False}, {"arch": "golf"}, {"bridge": True}, {"embed_dim": 8}):
        one, other = twins(config(**shape))
        names = {id(p): name for name, p in one.named_parameters()}
        expected = {names[id(p)]: role for role, members in one.roles().items() for p in members}
        assert other.roles() == expected


@pytest.mark.parametrize("tie", [True, False])
def test_only_matrices_of_the_layers_reach_muon(tie):
    model = mlx.GPT(config(tie=tie))
    parts = mlx.Optimizers(model).parts
    assert [role for role, part in parts.items() if isinstance(part, optim.Muon)] == ["matrices"]
    moved = {n.removesuffix(".v") for n in flat(parts["matrices"].state) if n.endswith(".v")}
    assert moved
    assert not any("embed_tokens" in name or "lm_head" in name for name in moved)


def test_the_table_has_its_own_learning_rate():
    for tie, expected in ((True, RATES.table), (False, RATES.embed)):
        optimizers = mlx.Optimizers(mlx.GPT(config(tie=tie)), RATES)
        optimizers.set(0.5)
        assert float(np.array(optimizers.parts["table"].learning_rate)) == pytest.approx(0.5 * expected)


def test_a_state_of_another_model_is_refused():
    small, large = (mlx.Optimizers(mlx.GPT(config(layers=layers))) for layers in (1, 2))
    with pytest.raises(UnreadableInput, match="does not fit"):
        small.restore(large.state())


def test_an_unknown_preset_is_refused():
    with pytest.raises(BadRequest, match="'muon' or 'adamw'"):
        mlx.Optimizers(mlx.GPT(config()), preset="sgd")  # type: ignore[arg-type]
