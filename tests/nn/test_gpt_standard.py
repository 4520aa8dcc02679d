"""The standard architecture is Qwen3 for the real transformers, through files on disk."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tiebeam.errors import BadRequest
from tiebeam.nn import GPT, GPTConfig

transformers = pytest.importorskip("transformers")


def small(**changes):
    base = {
        "vocab": 61,
        "dim": 32,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "context": 32,
        "rope_theta": 5000.0,
    }
    return GPTConfig(**base | changes)


def scrambled(config):
    torch.manual_seed(0)
    model = GPT(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model


def save(model, where, **options):
    config, tensors = model.export(**options)
    (where / "config.json").write_text(json.dumps(config))
    save_file(tensors, where / "model.safetensors", metadata={"format": "pt"})
    return where


def load(where):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        where, dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return model.eval()


@pytest.mark.parametrize("tie", [True, False])
def test_transformers_loads_it_with_the_same_logits_and_the_same_tie(tie, tmp_path):
    model = scrambled(small(tie=tie))
    theirs = load(save(model, tmp_path))
    assert type(theirs).__name__ == "Qwen3ForCausalLM"
    assert (theirs.lm_head.weight is theirs.model.embed_tokens.weight) is tie
    ids = torch.randint(61, (2, 20))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=2e-4, atol=2e-4)
        loss = theirs(ids, labels=ids).loss
        torch.testing.assert_close(model(ids[:, :-1], ids[:, 1:]), loss, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("tie", [True, False])
def test_the_numpy_decoder_has_the_same_logits(tie, tmp_path):
    from tiebeam.decode import Decoder

    model = scrambled(small(tie=tie))
    ids = torch.randint(61, (20,))
    theirs = Decoder.open(save(model, tmp_path)).logits(ids.tolist())
    with torch.no_grad():
        torch.testing.assert_close(model(ids[None])[0], torch.from_numpy(theirs), rtol=2e-4, atol=2e-4)


def test_gradients_match_transformers(tmp_path):
    model = scrambled(small())
    theirs = load(save(model, tmp_path))
    ids = torch.randint(61, (2, 20))
    model(ids[:, :-1], ids[:, 1:]).backward()
    theirs(ids, labels=ids).loss.backward()
    named = dict(theirs.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, named[name].grad, rtol=1e-3, atol=1e-5, msg=name)


def test_tensor_names_match_what_transformers_saves(tmp_path):
    model = GPT(small(tie=False))
    config, tensors = model.export()
    theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    assert {n: t.shape for n, t in tensors.items()} == {n: t.shape for n, t in theirs.state_dict().items()}


def test_a_checkpoint_that_transformers_saved_loads_here(tmp_path):
    theirs = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**small().to_hf())).eval()
    theirs.save_pretrained(tmp_path)
    from safetensors.torch import load_file

    model = GPT(GPTConfig.from_hf(json.loads((tmp_path / "config.json").read_text())))
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    ids = torch.randint(61, (2, 20))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=2e-4, atol=2e-4)


def test_a_tied_model_stores_the_table_once():
    config, tensors = GPT(small()).export()
    assert "lm_head.weight" not in tensors
    assert config["tie_word_embeddings"] is True


@pytest.mark.parametrize("changes", [{"bridge": True}, {"embed_dim": 8}, {"embed_dim": 8, "tie": False}])
def test_what_qwen3_lacks_is_refused_and_folds_on_request(changes, tmp_path):
    model = scrambled(small(**changes))
    with pytest.raises(BadRequest, match=r"fold=True"):
        model.export()
    theirs = load(save(model, tmp_path, fold=True))
    assert theirs.config.tie_word_embeddings is False
    ids = torch.randint(61, (2, 20))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=2e-4, atol=2e-4)


def test_a_model_with_a_softcap_does_not_call_itself_qwen3():
    config, _ = GPT(small(softcap=15.0)).export()
    assert config["model_type"] == "tiebeam_gpt"
    assert config["architectures"] != ["Qwen3ForCausalLM"]
    with pytest.raises(ValueError, match="tiebeam_gpt"):
        transformers.AutoConfig.for_model(**config)


def test_a_model_untied_during_training_exports_untied(tmp_path):
    model = scrambled(small(tie=0.6))
    head = model.untie()
    with torch.no_grad():
        head.mul_(1.5)
    theirs = load(save(model, tmp_path))
    assert theirs.config.tie_word_embeddings is False
    ids = torch.randint(61, (1, 9))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=2e-4, atol=2e-4)


def test_the_initial_loss_is_that_of_a_uniform_guess():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=1024, dim=256, layers=2, heads=4))
    ids = torch.randint(1024, (2, 64))
    targets = torch.randint(1024, (2, 64))
    assert model(ids, targets).item() == pytest.approx(6.93, abs=0.1)


def test_the_numbers_survive_bf16_storage(tmp_path):
    model = scrambled(small()).bfloat16()
    where = save(model, tmp_path)
    assert json.loads((where / "config.json").read_text())["dtype"] == "bfloat16"
    theirs = load(where)
    ids = torch.randint(61, (1, 9))
    with torch.no_grad():
        torch.testing.assert_close(model.float()(ids), theirs(ids).logits, rtol=2e-4, atol=2e-4)


def test_half_precision_weights_run():
    model = scrambled(small()).bfloat16()
    ids = torch.randint(61, (2, 9))
    loss = model(ids, ids)
    loss.backward()
    assert loss.dtype == torch.float32
    assert model.table.weight.grad.dtype == torch.bfloat16
