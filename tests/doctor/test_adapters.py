"""Adapters that the real PEFT wrote, on tied and untied bases."""

import json
from typing import Any

import peft
import pytest
import torch

from helpers.tiny_models import build
from tiebeam.doctor.adapters import diagnose_adapter, is_adapter
from tiebeam.errors import UnreadableInput


@pytest.fixture
def adapter(tmp_path):
    """An adapter and its base on disk; `grow` adds tokens first."""

    def make(tied, grow=0, save_base=True, **lora):
        base = build("llama", tie_word_embeddings=tied)
        base.save_pretrained(tmp_path / "base")
        base.name_or_path = str(tmp_path / "base")
        if grow:
            base.resize_token_embeddings(96 + grow)
        torch.manual_seed(1)
        config = peft.LoraConfig(r=2, task_type="CAUSAL_LM", base_model_name_or_path=str(tmp_path / "base"), **lora)
        model = peft.get_peft_model(base, config)
        model.save_pretrained(tmp_path / "adapter")
        return tmp_path / "adapter"

    return make


def codes(diagnosis):
    return [f.code for f in diagnosis.findings]


@pytest.mark.parametrize("tied", [True, False])
def test_an_adapter_on_the_layers_has_no_findings(adapter, tied):
    diagnosis = diagnose_adapter(adapter(tied, target_modules=["q_proj"]))
    assert codes(diagnosis) == []
    assert "does not change the pair" in diagnosis.merge


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_lora_on_one_matrix_of_a_tied_base_is_found(adapter, target):
    diagnosis = diagnose_adapter(adapter(True, target_modules=["q_proj", target]))
    assert codes(diagnosis)[0] == "TB401"
    assert ("TB403" in codes(diagnosis)) == (target == "lm_head")
    assert "embedding and head both get it" in diagnosis.merge


def test_a_real_merge_does_what_the_sentence_predicts(adapter, tmp_path):
    """LoRA on the head of a tied base: the real merge changes the embedding too."""
    from transformers import AutoModelForCausalLM

    where = adapter(True, target_modules=["lm_head"], init_lora_weights=False)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    before = base.get_input_embeddings().weight.detach().clone()
    merged = peft.PeftModel.from_pretrained(base, where).merge_and_unload()
    assert not torch.equal(before, merged.get_input_embeddings().weight)


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_lora_on_one_matrix_of_an_untied_base_has_no_findings(adapter, target):
    assert codes(diagnose_adapter(adapter(False, target_modules=["q_proj", target]))) == []


def test_lora_on_a_base_that_was_just_untied_has_no_findings(adapter, tmp_path):
    """The fix of TB401: untied and still equal counts as untied."""
    import tiebeam

    where = adapter(True, target_modules=["lm_head"])
    tiebeam.untie(tmp_path / "base", tmp_path / "untied")
    diagnosis = diagnose_adapter(where, tmp_path / "untied")
    assert codes(diagnosis) == []
    assert "the two stay separate" in diagnosis.merge


def test_a_full_copy_of_one_matrix_of_a_tied_base_is_found(adapter):
    diagnosis = diagnose_adapter(adapter(True, target_modules=["q_proj"], modules_to_save=["lm_head"]))
    assert "TB402" in codes(diagnosis)
    assert "torn" in diagnosis.merge


def test_an_adapter_with_more_rows_than_its_base_is_found(adapter):
    where = adapter(True, grow=4, target_modules=["q_proj"], modules_to_save=["embed_tokens"])
    assert "TB404" in codes(diagnose_adapter(where))


def test_tokens_trained_in_one_matrix_of_an_untied_base_are_found(adapter):
    where = adapter(False, target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [90, 91]})
    assert codes(diagnose_adapter(where)) == ["TB405"]


def test_the_base_can_be_given(adapter, tmp_path):
    where = adapter(True, target_modules=["lm_head"])
    (tmp_path / "base").rename(tmp_path / "moved")
    assert "TB401" in codes(diagnose_adapter(where, tmp_path / "moved"))
    with pytest.raises(UnreadableInput, match="base=MODEL"):
        diagnose_adapter(where, tmp_path / "base")


def test_a_named_base_that_is_gone_leaves_what_the_adapter_touches(adapter, tmp_path):
    where = adapter(True, target_modules=["q_proj", "lm_head"])
    (tmp_path / "base").rename(tmp_path / "moved")
    diagnosis = diagnose_adapter(where)
    assert diagnosis.base is None
    assert codes(diagnosis) == []
    assert sorted(diagnosis.touched.lora) == ["lm_head", "q_proj"]
    assert "base=MODEL" in diagnosis.merge
    assert diagnosis.to_dict()["base"] is None


def test_an_adapter_that_names_no_base_shows_modules_copies_and_tokens(adapter):
    tokens = {"embed_tokens": [1, 2]}
    where = adapter(
        False, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"], trainable_token_indices=tokens
    )
    config = json.loads((where / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = None
    (where / "adapter_config.json").write_text(json.dumps(config))
    touched = diagnose_adapter(where).touched
    assert sorted(touched.lora) == ["q_proj", "v_proj"]
    assert touched.copies == ("lm_head",)
    assert touched.tokens == ("embed_tokens",)
    assert str(touched).startswith("LoRA of rank 2 on ")


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens", "base_model.model.lm_head", "trainable_tokens_delta", ""])
@pytest.mark.parametrize("shape", [(), (2,)], ids=["scalar", "vector"])
def test_a_tensor_named_like_a_module_is_no_change_of_it(adapter, name, shape):
    from safetensors.torch import load_file, save_file

    where = adapter(True, target_modules=["q_proj"]) / "adapter_model.safetensors"
    save_file({**load_file(where), name: torch.zeros(shape)}, where)
    diagnosis = diagnose_adapter(where.parent)
    assert codes(diagnosis) == []
    assert diagnosis.touched.lora == ("q_proj",)


@pytest.mark.parametrize("part", ["base_layer.weight", "weight", "lora_embedding_A", "lora_B.weight"])
def test_a_scalar_in_place_of_a_matrix_is_no_change_of_it(adapter, part):
    from safetensors.torch import load_file, save_file

    where = adapter(True, target_modules=["q_proj"]) / "adapter_model.safetensors"
    save_file({**load_file(where), f"base_model.model.lm_head.{part}": torch.zeros(())}, where)
    assert codes(diagnose_adapter(where.parent)) == []


def test_an_adapter_is_distinguished_from_a_model(adapter, tmp_path):
    where = adapter(True, target_modules=["q_proj"])
    assert is_adapter(where)
    assert not is_adapter(tmp_path / "base")


# What the real PEFT does with each kind of adapter on a tied base. `exact`: the merged model computes what was trained.
KINDS: dict[str, dict[str, Any]] = {
    "LoRA on the head": {"target_modules": ["q_proj", "lm_head"]},
    "LoRA on the embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "LoRA on both": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "a copy of the head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "a copy of the embedding": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "a copy of both": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "single tokens": {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [90, 91]}},
}
TOKENS = torch.arange(1, 20)[None]


@pytest.fixture
def trained(tmp_path):
    """An adapter whose every parameter was moved, beside its tied base: (directory, base directory)."""

    def make(**lora):
        base = build("llama", tie_word_embeddings=True)
        base.save_pretrained(tmp_path / "base")
        base.name_or_path = str(tmp_path / "base")
        config = peft.LoraConfig(r=2, task_type="CAUSAL_LM", base_model_name_or_path=str(tmp_path / "base"), **lora)
        model = peft.get_peft_model(base, config)
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) * 0.05)
        model.save_pretrained(tmp_path / "adapter")
        return tmp_path / "adapter", tmp_path / "base"

    return make


def load(adapter, base):
    from transformers import AutoModelForCausalLM

    return peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


@pytest.mark.parametrize("ensure", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_merge_by_peft_does_what_is_predicted(trained, tmp_path, kind, ensure):
    from transformers import AutoModelForCausalLM

    adapter, base = trained(**KINDS[kind], **({"ensure_weight_tying": True} if ensure else {}))
    predicted = next(p for p in diagnose_adapter(adapter).loaders if p.loader == "PEFT merge")
    model = load(adapter, base)
    before = logits(model)
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    off = float((logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()) - before).abs().max())
    assert ("exact" if off < 1e-4 else "changes the model") == predicted.outcome
    flag = json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"]
    assert flag == ("two matrices" not in predicted.reason)


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_ensure_weight_tying_with_lora_merges_the_change_twice(trained, target):
    """So no fix of TB401 leads there, and TB401 is raised for it."""
    adapter, base = trained(target_modules=[target], ensure_weight_tying=True)
    model = load(adapter, base)
    layer = model.base_model.model.get_input_embeddings()
    before, delta = layer.weight.detach().clone(), layer.get_delta_weight("default").detach()
    after = model.merge_and_unload().get_input_embeddings().weight
    assert torch.allclose(after, before + 2 * delta, atol=1e-6)
    diagnosis = diagnose_adapter(adapter)
    assert "TB401" in codes(diagnosis)
    finding = next(f for f in diagnosis.findings if f.code == "TB401")
    assert not any("LoraConfig" in step.text for step in finding.steps)


@pytest.mark.parametrize("ensure", [False, True])
@pytest.mark.parametrize("kind", ["LoRA on the head", "LoRA on the embedding", "LoRA on both"])
def test_the_fix_of_tb401_merges_what_was_trained(trained, tmp_path, kind, ensure):
    import tiebeam

    adapter, base = trained(**KINDS[kind], **({"ensure_weight_tying": True} if ensure else {}))
    before = logits(load(adapter, base))
    tiebeam.untie(base, tmp_path / "untied")

    def check(outcome):
        predicted = next(p for p in diagnose_adapter(adapter, tmp_path / "untied").loaders if p.loader == "PEFT merge")
        merged = load(adapter, tmp_path / "untied").merge_and_unload()
        assert predicted.outcome == outcome
        assert torch.allclose(logits(merged), before, atol=1e-4) == (outcome == "exact")

    if ensure:  # the second step of the fix
        check("changes the model")
        path = adapter / "adapter_config.json"
        config = json.loads(path.read_text())
        config |= {"ensure_weight_tying": False, "target_modules": ["q_proj", "embed_tokens", "lm_head"]}
        path.write_text(json.dumps(config))
    check("exact")
