"""The guard on models in memory: ties broken by the real torch and transformers."""

import copy
import warnings

import pytest
import torch
from torch import nn

from helpers.tiny_models import build
from tiebeam.doctor.guard import assert_saved, guard
from tiebeam.errors import TieBroken


class Plain(nn.Module):
    """A module without Hugging Face's accessors."""

    def __init__(self, tie=True, vocab=300, dim=16, std=0.02):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        nn.init.normal_(self.embed_tokens.weight, std=std)
        self.middle = nn.Linear(dim, dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        if tie:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids):
        return self.lm_head(self.middle(self.embed_tokens(ids)))


def plain_guard(model, **options):
    return guard(model, embed="embed_tokens.weight", head="lm_head.weight", **options)


def codes(findings):
    return {f.code for f in findings}


@pytest.mark.parametrize("tie", [True, False])
def test_a_healthy_plain_module_has_no_findings(tie):
    assert plain_guard(Plain(tie)).check() == ()


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gemma", "bert", "t5", "whisper"])
def test_a_healthy_transformers_model_has_no_findings(model_type, tie):
    assert guard(build(model_type, tie_word_embeddings=tie)).check() == ()


def test_a_tie_broken_by_to_empty_is_found_and_the_stage_named():
    model = Plain()
    watched = plain_guard(model)
    with pytest.raises(TieBroken, match=r"TB501.*after resume"), watched.stage("resume"):
        model.to("meta").to_empty(device="cpu")


def test_a_tie_broken_by_load_state_dict_assign_is_found():
    model = Plain()
    watched = plain_guard(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(TieBroken, match="TB501"), watched.stage("load"):
        model.load_state_dict(state, assign=True)


def test_a_tie_that_survives_a_stage_is_left_alone():
    model = build("llama", tie_word_embeddings=True)
    with guard(model).stage("resize"):
        model.resize_token_embeddings(104)


def test_kept_ties_have_no_findings():
    model = Plain()
    for change in (copy.deepcopy, lambda m: m.half(), lambda m: m.to(torch.bfloat16)):
        assert plain_guard(change(model)).check() == ()


def test_one_storage_in_two_parameters_is_found():
    model = Plain()
    model.lm_head.weight = nn.Parameter(model.embed_tokens.weight.data)
    assert codes(plain_guard(model, tied=True).check()) == {"TB502"}


def test_a_storage_shared_through_data_is_expected_to_be_one_parameter():
    model = Plain(tie=False)
    model.lm_head.weight.data = model.embed_tokens.weight.data
    assert codes(plain_guard(model).check()) == {"TB502"}


def test_a_tied_matrix_in_two_optimizers_is_found():
    model = Plain()
    watched = plain_guard(model)
    watched.watch(torch.optim.AdamW([model.embed_tokens.weight]))
    with pytest.raises(TieBroken, match="TB503"):
        watched.watch(torch.optim.SGD([model.lm_head.weight], lr=0.1))


def test_an_untied_pair_in_two_optimizers_is_fine():
    model = Plain(tie=False)
    watched = plain_guard(model)
    watched.watch(torch.optim.AdamW([model.embed_tokens.weight]))
    watched.watch(torch.optim.SGD([model.lm_head.weight], lr=0.1))


def test_an_embedding_in_muon_is_warned_about():
    model = Plain()
    with pytest.warns(UserWarning, match="TB504"):
        plain_guard(model).watch(torch.optim.Muon([model.embed_tokens.weight, model.middle.weight]))


def test_muon_for_hidden_matrices_is_fine():
    model = Plain()
    watched = plain_guard(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched.watch(torch.optim.Muon([model.middle.weight]))
        watched.watch(torch.optim.AdamW([model.embed_tokens.weight, model.middle.bias]))


def test_an_optimizer_with_a_replaced_parameter_is_found():
    model = Plain()
    optimizer = torch.optim.AdamW(model.parameters())
    model.embed_tokens.weight = nn.Parameter(model.embed_tokens.weight.detach().clone())
    model.lm_head.weight = model.embed_tokens.weight
    with pytest.raises(TieBroken, match="TB510"):
        plain_guard(model).watch(optimizer)


def test_a_hidden_matrix_with_the_shape_of_the_embedding_is_not_mistaken_for_it():
    model = Plain()
    model.extra = nn.Linear(16, 300, bias=False)
    watched = plain_guard(model)
    watched.watch(torch.optim.AdamW(model.parameters()))
    assert watched.check() == ()


def test_the_guard_checks_before_each_step():
    model = Plain()
    optimizer = plain_guard(model).watch(torch.optim.AdamW(model.parameters()))
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    with pytest.raises(TieBroken, match="TB501"):
        optimizer.step()


def test_an_embedding_initialised_at_one_that_reaches_the_head_is_warned_about():
    assert codes(plain_guard(Plain(std=1.0)).check()) == {"TB505"}


def test_an_untied_embedding_initialised_at_one_is_fine():
    assert plain_guard(Plain(tie=False, std=1.0)).check() == ()


def test_freezing_the_embedding_of_a_tied_model_freezes_the_head():
    model = build("llama", tie_word_embeddings=True)
    model.get_input_embeddings().weight.requires_grad_(False)
    assert codes(guard(model).check()) == {"TB506"}


def test_a_wholly_frozen_model_is_fine():
    model = build("llama", tie_word_embeddings=True).requires_grad_(False)
    assert guard(model).check() == ()


def test_a_torn_checkpoint_loaded_by_transformers_is_a_broken_tie(tmp_path):
    """Loading kept both, the flag stayed true: the next tie_weights() would overwrite the head."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    build("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert codes(guard(model).check()) == {"TB501"}
    assert codes(guard(model, tied=False).check()) == {"TB507"}
    model.config.tie_word_embeddings = False
    assert guard(model).check() == ()


def test_a_list_of_tied_keys_under_transformers_5_is_found():
    model = build("llama", tie_word_embeddings=True)
    # Old remote code writes a list, not a dictionary.
    model.__class__ = type("Old", (type(model),), {"_tied_weights_keys": ["lm_head.weight"]})
    assert "TB509" in codes(guard(model).check())


def test_compile_and_data_parallel_wrappers_are_seen_through():
    model = Plain()
    assert plain_guard(torch.compile(model)).check() == ()
    assert plain_guard(nn.DataParallel(model)).check() == ()


def test_a_pair_sharded_in_two_groups_is_found(tmp_path):
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        together = Plain()
        with plain_guard(together).stage("shard"):
            fully_shard([together.embed_tokens, together.lm_head], mesh=mesh)
        separate = Plain(tie=False)
        watched = plain_guard(separate, tied=True)
        fully_shard(separate.embed_tokens, mesh=mesh)
        fully_shard(separate.lm_head, mesh=mesh)
        assert codes(watched.check()) == {"TB511"}
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("tie", [True, False])
def test_a_saved_model_has_the_tie_of_the_model(tmp_path, tie):
    model = build("llama", tie_word_embeddings=tie)
    model.save_pretrained(tmp_path)
    assert_saved(model, tmp_path)


def test_tying_in_memory_without_the_flag_is_caught_after_the_save(tmp_path):
    model = build("llama", tie_word_embeddings=False)
    model.lm_head.weight = model.model.embed_tokens.weight
    model.save_pretrained(tmp_path)
    with pytest.raises(TieBroken, match="headless"):
        assert_saved(model, tmp_path)


def test_a_save_of_other_values_is_caught(tmp_path):
    model = build("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        model.model.embed_tokens.weight.add_(1)
    with pytest.raises(TieBroken, match="does not hold the model's values"):
        assert_saved(model, tmp_path)


def test_saving_a_plain_tied_module_is_noted(tmp_path):
    from safetensors.torch import save_file

    model = Plain()
    with pytest.raises(RuntimeError, match="share memory"):
        save_file(model.state_dict(), tmp_path / "m.safetensors")
    assert codes(plain_guard(model).check("save")) == {"TB508"}
    assert plain_guard(Plain(tie=False)).check("save") == ()
