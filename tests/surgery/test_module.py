"""tie_ and untie_ in memory: parameter identity, optimizer state, and save and load."""

import pytest
import torch
from torch import nn

from helpers.tiny_models import auto_class, build
from tiebeam.errors import BadRequest
from tiebeam.surgery.module import count_parameters, is_tied, tie_, untie_
from tiebeam.surgery.split_parameter import split_parameter

KINDS = ["llama", "gpt2", "gpt_neox", "opt", "gemma2", "bert", "bart"]


def pair(model):
    return model.get_input_embeddings().weight, model.get_output_embeddings().weight


def logits(model):
    ids = torch.arange(4, 12)[None]
    return model.eval()(input_ids=ids).logits


def reloaded(model, model_type, where):
    model.save_pretrained(where)
    loaded, info = auto_class(model_type).from_pretrained(where, output_loading_info=True)
    assert not info["missing_keys"]
    return loaded


def with_biases(model):
    """Non-zero biases, so that a lost bias changes the logits."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_untied_stays_untied_through_save_and_load(kind, tmp_path):
    model = with_biases(build(kind, tie_word_embeddings=True))
    before = logits(model)
    assert untie_(model) is model
    E, W = pair(model)
    assert E is not W
    assert torch.equal(E, W)
    assert torch.equal(logits(model), before)
    with torch.no_grad():
        W[5] += 1
    changed = logits(model)
    loaded = reloaded(model, kind, tmp_path / "m")
    assert pair(loaded)[0] is not pair(loaded)[1]
    assert torch.equal(logits(loaded), changed)


@pytest.mark.parametrize("kind", KINDS)
def test_tied_again_stays_tied_through_save_and_load(kind, tmp_path):
    model = untie_(with_biases(build(kind, tie_word_embeddings=True)))
    before = logits(model)
    tie_(model)
    assert pair(model)[0] is pair(model)[1]
    loaded = reloaded(model, kind, tmp_path / "m")
    assert pair(loaded)[0] is pair(loaded)[1]
    assert torch.equal(logits(loaded), before)


@pytest.mark.parametrize("keep", ["embed", "head", "mean"])
def test_two_different_matrices_need_keep(keep):
    model = build("llama", tie_word_embeddings=False)
    E, W = (p.detach().clone() for p in pair(model))
    with pytest.raises(BadRequest, match='keep="embed", keep="head" or keep="mean"'):
        tie_(model)
    assert torch.equal(pair(model)[1], W), "a refusal changes nothing"
    assert model.config.tie_word_embeddings is False
    tie_(model, keep=keep)
    assert torch.equal(pair(model)[0], {"embed": E, "head": W, "mean": (E + W) / 2}[keep])
    assert model.config.tie_word_embeddings is True


def trained(model, optimizer):
    loss = model(input_ids=torch.arange(4, 12)[None], labels=torch.arange(4, 12)[None]).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("make", [torch.optim.AdamW, lambda p: torch.optim.AdamW(p, amsgrad=True, foreach=False)])
def test_untie_copies_the_moments_and_training_continues(make):
    model = build("llama", tie_word_embeddings=True)
    optimizer = make(model.parameters())
    trained(model, optimizer)
    untie_(model, optimizer=optimizer)
    E, W = pair(model)
    assert optimizer.state[W].keys() == optimizer.state[E].keys()
    assert torch.equal(optimizer.state[W]["exp_avg_sq"], optimizer.state[E]["exp_avg_sq"])
    assert optimizer.state[W]["exp_avg"].data_ptr() != optimizer.state[E]["exp_avg"].data_ptr()
    before = W.detach().clone()
    trained(model, optimizer)
    assert not torch.equal(E, W)
    assert not torch.equal(W, before)
    optimizer.load_state_dict(optimizer.state_dict())


def test_tie_adds_the_moments_and_leaves_one_parameter():
    model = build("llama", tie_word_embeddings=False)
    optimizer = torch.optim.AdamW(model.parameters())
    trained(model, optimizer)
    E, W = pair(model)
    expected = {key: optimizer.state[E][key] + optimizer.state[W][key] for key in ("exp_avg", "exp_avg_sq")}
    tie_(model, keep="mean", optimizer=optimizer)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert sum(p is E for p in held) == 1
    assert not any(p is W for p in held)
    assert W not in optimizer.state
    for key, value in expected.items():
        assert torch.equal(optimizer.state[E][key], value)
    trained(model, optimizer)


def test_an_optimizer_that_does_not_hold_the_parameter_is_refused():
    model = build("llama", tie_word_embeddings=True)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1)
    with pytest.raises(BadRequest, match="does not hold"):
        untie_(model, optimizer=optimizer)
    assert pair(model)[0] is pair(model)[1], "a refusal changes nothing"
    assert model.config.tie_word_embeddings is True


class Plain(nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.wte, self.lm_head = nn.Embedding(20, 6), nn.Linear(6, 20, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight


NAMES = {"embed": "wte.weight", "head": "lm_head.weight"}


def test_a_plain_module_is_tied_by_its_two_names():
    model = Plain(tied=False)
    tie_(model, **NAMES, keep="head")
    assert model.lm_head.weight is model.wte.weight
    untie_(model, **NAMES)
    assert model.lm_head.weight is not model.wte.weight
    with pytest.raises(BadRequest, match=r"no parameter 'head\.weight'"):
        tie_(model, embed="wte.weight", head="head.weight")


def test_the_tied_keys_list_of_transformers_4_gets_the_head():
    model = Plain(tied=False)
    model._tied_weights_keys = []
    tie_(model, **NAMES, keep="embed")
    assert model._tied_weights_keys == ["lm_head.weight"]
    untie_(model, **NAMES)
    assert model.lm_head.weight is not model.wte.weight


def test_each_storage_is_counted_once():
    assert count_parameters(Plain(tied=False)) == 240
    model = Plain(tied=True)
    assert count_parameters(model) == 120
    model.lm_head.weight = nn.Parameter(model.wte.weight.detach())  # two Parameters over one storage
    assert sum(p.numel() for p in model.parameters()) == 240
    assert count_parameters(model) == 120
    model.wte.weight.requires_grad_(False)
    assert count_parameters(model, trainable=True) == 120


def test_two_parameters_over_one_storage_are_tied():
    model = Plain(tied=True)
    assert is_tied(model, **NAMES)
    model.lm_head.weight = nn.Parameter(model.wte.weight.detach())
    assert is_tied(model, **NAMES)
    untie_(model, **NAMES)
    assert not is_tied(model, **NAMES)


def test_t5_is_untied_in_memory_with_a_warning_and_an_untouched_config():
    model = build("t5")
    with pytest.warns(UserWarning, match="whatever its config says"):
        untie_(model)
    assert pair(model)[0] is not pair(model)[1]
    assert model.config.tie_word_embeddings is True


def test_parameters_on_the_meta_device_are_refused():
    with torch.device("meta"):
        model = Plain(tied=False)
    with pytest.raises(BadRequest, match="meta device"):
        tie_(model, **NAMES, keep="embed")


def test_a_compiled_model_is_unwrapped():
    model = build("llama", tie_word_embeddings=True)
    untie_(torch.compile(model))
    assert pair(model)[0] is not pair(model)[1]


def test_a_split_parameter_gets_the_gradient_and_can_have_its_own_group():
    parameter = nn.Parameter(torch.ones(3))
    optimizers = [torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1), torch.optim.AdamW([parameter], lr=0.5)]
    parameter.grad = torch.full((3,), 2.0)
    new = split_parameter(parameter, optimizers, own_group=True)
    assert torch.equal(new.grad, parameter.grad)
    assert new.grad is not parameter.grad
    assert [group["lr"] for group in optimizers[1].param_groups] == [0.5, 0.5]
    assert optimizers[1].param_groups[1]["params"] == [new]
    assert len(optimizers[0].param_groups) == 1


def test_tying_adds_pending_gradients():
    model = Plain(tied=False)
    model.wte.weight.grad = torch.ones(20, 6)
    model.lm_head.weight.grad = torch.ones(20, 6)
    tie_(model, **NAMES, keep="embed")
    assert torch.equal(model.wte.weight.grad, torch.full((20, 6), 2.0))


@pytest.mark.parametrize("function", [tie_, untie_, count_parameters, is_tied])
def test_a_path_instead_of_a_module_gets_a_sentence(function):
    with pytest.raises(BadRequest, match=r"model must be a torch\.nn\.Module, not str"):
        function("./model")


def test_a_module_without_a_pair_asks_for_the_names():
    with pytest.raises(BadRequest, match=r'embed="wte\.weight", head="lm_head\.weight"'):
        tie_(nn.Sequential(nn.LayerNorm(4)))
