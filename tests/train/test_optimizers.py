"""Optimizers by role: which optimizer updates what, at which learning rate, and resuming from a saved state."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor, nn

from tiebeam.errors import BadRequest
from tiebeam.nn import GPT, GPTConfig
from tiebeam.train.learning_rates import LearningRates
from tiebeam.train.muon import Muon
from tiebeam.train.optimizers import Optimizers, make_optimizers


class Tiny(nn.Module):
    """A pair around one matrix and one gain."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(11, 4) * 0.1)
        self.head = None if tied else nn.Parameter(torch.randn(11, 4) * 0.1)
        self.matrix = nn.Parameter(torch.randn(4, 4))
        self.gain = nn.Parameter(torch.ones(4))

    def roles(self) -> dict[str, list[nn.Parameter]]:
        head = [self.head] if self.head is not None else []
        return {"table": [self.table], "head": head, "matrices": [self.matrix], "scalars": [self.gain]}

    def forward(self, ids: Tensor) -> Tensor:
        head = self.table if self.head is None else self.head
        logits = (self.table[ids] @ self.matrix.T * self.gain) @ head.T
        return nn.functional.cross_entropy(logits[:-1], ids[1:])


IDS = torch.tensor([1, 5, 3, 1, 5, 2, 9, 1, 5])


def train(model: Tiny, optimizers: Optimizers, steps: int) -> list[float]:
    losses = []
    for step in range(steps):
        optimizers.set(multiplier=1 / (1 + step % 3), momentum=0.9)
        loss = model(IDS)
        loss.backward()
        optimizers.step()
        optimizers.zero_grad()
        losses.append(loss.item())
    return losses


def owners(optimizers: Optimizers) -> dict[int, tuple[str, str, float]]:
    return {
        id(parameter): (type(part).__name__, group["role"], group["lr"])
        for part in optimizers
        for group in part.param_groups
        for parameter in group["params"]
    }


def test_each_role_has_its_optimizer_and_learning_rate_when_tied() -> None:
    model = Tiny()
    held = owners(make_optimizers(model.roles(), LearningRates(matrices=0.1, table=0.2, scalars=0.3)))
    assert held == {
        id(model.table): ("Adam", "table", 0.2),
        id(model.matrix): ("Muon", "matrices", 0.1),
        id(model.gain): ("Adam", "scalars", 0.3),
    }


def test_embedding_and_head_have_separate_learning_rates_when_untied() -> None:
    model = Tiny(tied=False)
    held = owners(make_optimizers(model.roles(), LearningRates(embed=0.6, head=0.008)))
    assert held[id(model.table)] == ("Adam", "table", 0.6)
    assert held[id(model.head)] == ("Adam", "head", 0.008)


def test_the_adamw_preset_has_one_learning_rate_and_no_decay_on_scalars() -> None:
    model = Tiny(tied=False)
    (adamw,) = make_optimizers(model.roles(), LearningRates(single=0.01, weight_decay=0.2), preset="adamw")
    assert type(adamw) is torch.optim.AdamW
    assert {group["lr"] for group in adamw.param_groups} == {0.01}
    decays = {group["role"]: group["weight_decay"] for group in adamw.param_groups}
    assert decays == {"table": 0.2, "head": 0.2, "matrices": 0.2, "scalars": 0.0}


@pytest.mark.parametrize("tied", [True, False])
def test_the_embedding_never_reaches_muon(tied: bool) -> None:
    model = Tiny(tied)
    for part in make_optimizers(model.roles()):
        if isinstance(part, Muon):
            assert [id(p) for group in part.param_groups for p in group["params"]] == [id(model.matrix)]


@pytest.mark.parametrize(
    "disguise", [lambda table: nn.Parameter(table.detach()), lambda table: nn.Parameter(table.detach().T)]
)
@pytest.mark.parametrize("end", ["table", "head"])
def test_a_view_of_the_embedding_is_stopped_before_muon(end: str, disguise) -> None:
    roles = Tiny(tied=False).roles()
    roles["matrices"].append(disguise(roles[end][0]))
    with pytest.raises(AssertionError, match=f"the {end} .* reached Muon; do not optimize embeddings with Muon"):
        make_optimizers(roles)


def test_a_parameter_in_two_roles_fails_an_assertion() -> None:
    roles = Tiny().roles()
    roles["scalars"].append(roles["table"][0])
    with pytest.raises(AssertionError, match=r"\[11, 4\] is both table and scalars"):
        make_optimizers(roles)


@pytest.mark.parametrize("preset", ["muon", "adamw"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_state_resumes_to_the_same_numbers(preset, tied: bool) -> None:
    torch.manual_seed(0)
    model = Tiny(tied)
    optimizers = make_optimizers(model.roles(), preset=preset)
    train(model, optimizers, 5)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "parts": [part.state_dict() for part in optimizers]}, file)
    expected = train(model, optimizers, 5)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = Tiny(tied)
    other.load_state_dict(saved["model"])
    resumed = make_optimizers(
        other.roles(), LearningRates(matrices=9, table=9, head=9, embed=9, scalars=9, single=9), preset
    )
    for part, state in zip(resumed, saved["parts"], strict=True):
        part.load_state_dict(state)
    assert train(other, resumed, 5) == expected


def test_set_scales_every_learning_rate_from_its_peak_and_sets_only_muons_momentum() -> None:
    optimizers = make_optimizers(Tiny(tied=False).roles())
    optimizers.set(0.5, momentum=0.9)
    optimizers.set(0.1, momentum=0.91)
    peak = LearningRates()
    expected = {"table": peak.embed, "head": peak.head, "scalars": peak.scalars, "matrices": peak.matrices}
    assert optimizers.learning_rates() == pytest.approx({role: 0.1 * rate for role, rate in expected.items()})
    adam, muon = optimizers
    assert muon.param_groups[0]["momentum"] == 0.91
    assert all("momentum" not in group for group in adam.param_groups)


@pytest.mark.parametrize("preset", ["muon", "adamw"])
def test_a_model_learns(preset) -> None:
    torch.manual_seed(0)
    model = Tiny()
    losses = train(model, make_optimizers(model.roles(), LearningRates(single=0.03), preset), 40)
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize("arch", ["standard", "golf"])
@pytest.mark.parametrize("tie", [True, False, 0.5])
def test_every_parameter_of_a_gpt_is_updated_and_untying_copies_the_moments(arch, tie) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=31, dim=16, layers=2, heads=2, arch=arch, context=8, tie=tie))
    optimizers = make_optimizers(model.roles())
    ids = torch.randint(0, 31, (4, 9))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for step in range(4):
        if step == 2 and tie == 0.5:
            head = model.untie(optimizers)
            moments = next(part for part in optimizers if head in part.state).state
            assert torch.equal(moments[head]["exp_avg"], moments[model.table.weight]["exp_avg"])
        optimizers.set(1.0, momentum=0.9)
        model(ids[:, :-1], ids[:, 1:]).backward()
        optimizers.step()
        optimizers.zero_grad()
    after = dict(model.named_parameters())
    assert set(owners(optimizers)) == {id(parameter) for parameter in after.values()}
    assert [name for name, start in before.items() if torch.equal(after[name], start)] == []


def test_a_model_without_matrices_needs_no_muon() -> None:
    roles = Tiny().roles() | {"matrices": []}
    assert [type(part).__name__ for part in make_optimizers(roles)] == ["Adam"]


@pytest.mark.parametrize(
    "wrong", [{"table": -1.0}, {"matrices": float("nan")}, {"betas": (0.9, 1.0)}, {"head": float("inf")}]
)
def test_invalid_learning_rates_are_refused(wrong: dict) -> None:
    with pytest.raises(BadRequest, match=next(iter(wrong))):
        LearningRates(**wrong)


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(BadRequest, match="'sgd'` is not supported; use 'muon' or 'adamw'"):
        make_optimizers(Tiny().roles(), preset="sgd")  # type: ignore[arg-type]
