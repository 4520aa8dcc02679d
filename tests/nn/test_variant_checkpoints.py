"""A checkpoint of every variant: the NumPy decoder and a reloaded model have the logits of the model in memory."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiebeam
from tiebeam.decode import Decoder
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.nn import GPT, GPTConfig

CHANGES = {
    "factorised": {"embed_dim": 8},
    "zero-head": {"tie": False, "zero_head": True},
    "embed-norm": {"embed_norm": True},
    "embed-norm-untied": {"embed_norm": True, "tie": False},
    "softcap": {"softcap": 3.0},
    "bigram": {"bigram_rows": 30},
    "bigram-as-many-rows-as-tokens": {"bigram_rows": 61},
    "pseudo-inverse": {"pseudo_inverse": True},
    "bigram-and-bridge": {"bigram_rows": 30, "bridge": True},
    "all": {"bigram_rows": 30, "embed_dim": 8, "embed_norm": True, "softcap": 3.0, "tie": False},
    "pseudo-inverse-and-bigram": {"pseudo_inverse": True, "bigram_rows": 30},
    "golf-bigram": {"arch": "golf", "bigram_rows": 30, "softcap": 3.0},
    "golf-pseudo-inverse": {"arch": "golf", "pseudo_inverse": True},
}
FOREIGN = {"factorised", "zero-head", "pseudo-inverse"}  # written as a plain Qwen3


def scrambled(changes):
    torch.manual_seed(0)
    config = GPTConfig(**{"vocab": 61, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "context": 32, **changes})
    model = GPT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.restore_constraints()
    return model


@pytest.fixture(params=CHANGES)
def saved(request, tmp_path):
    model = scrambled(CHANGES[request.param])
    config, tensors = model.export(fold=model.config.foldable)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return request.param, model, tmp_path


def test_the_numpy_decoder_has_the_same_logits_at_once_and_token_by_token(saved):
    _, model, path = saved
    ids = torch.randint(61, (20,))
    with torch.no_grad():
        expected = model(ids[None])[0].numpy()
    assert np.abs(expected).max() > 0.5
    decoder = Decoder.open(path)
    assert not decoder.notes
    np.testing.assert_allclose(decoder.logits(ids.tolist()), expected, rtol=0, atol=3e-4)
    cache = decoder.cache()
    steps = [decoder.unembed(decoder.forward([token], cache))[0] for token in ids.tolist()]
    np.testing.assert_allclose(np.stack(steps), expected, rtol=0, atol=3e-4)


def test_a_reloaded_model_is_the_same_function_and_inspect_counts_its_tensors(saved):
    _, model, path = saved
    config = json.loads((path / "config.json").read_text())
    again = GPT(GPTConfig.from_hf(config))
    again.load_state_dict(load_file(path / "model.safetensors"))
    ids = torch.randint(61, (2, 20))
    with torch.no_grad():
        torch.testing.assert_close(again(ids), model(ids), rtol=0, atol=3e-4)
    report = tiebeam.inspect(path)
    assert str(report.pair.tie) == ("shared" if config["tie_word_embeddings"] else "untied")
    assert report.params.total == again.size
    assert not report.notes, "the names of our own formats are known, not guessed"
    if not model.config.foldable:
        assert again.size == model.size


def test_transformers_opens_what_is_written_as_qwen3_with_the_same_logits(saved):
    transformers = pytest.importorskip("transformers")
    name, model, path = saved
    config = json.loads((path / "config.json").read_text())
    assert (config["model_type"] == "qwen3") == (name in FOREIGN)
    if name not in FOREIGN:
        return
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids = torch.randint(61, (2, 20))
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(ids).logits, model(ids), rtol=0, atol=3e-4)


def test_the_factorised_pair_is_two_products_of_one_table():
    model = scrambled(CHANGES["factorised"])
    _, tensors = model.export(fold=True)
    A, up, down = model.table.weight, model.embed_proj.weight, model.head_proj.weight
    torch.testing.assert_close(tensors["model.embed_tokens.weight"], A @ up.t())
    torch.testing.assert_close(tensors["lm_head.weight"], A @ down)
    assert model.size == GPT(GPTConfig(vocab=61, dim=32, layers=2, heads=4, kv_heads=2)).size - 61 * 24 + 2 * 8 * 32


def test_the_norm_after_the_embedding_is_rms_without_weights():
    model = scrambled(CHANGES["embed-norm"])
    ids = torch.randint(61, (1, 20))
    rows = model.table.weight[ids]
    expected = model._layers(rows / (rows.square().mean(-1, keepdim=True) + 1e-6).sqrt())
    torch.testing.assert_close(model.hidden(ids), expected)


def test_a_zero_head_starts_with_the_loss_of_a_uniform_guess():
    config = GPTConfig(vocab=61, dim=32, layers=2, heads=4, tie=False, zero_head=True)
    torch.manual_seed(0)
    zero = GPT(config)
    torch.manual_seed(0)
    drawn = GPT(GPTConfig(vocab=61, dim=32, layers=2, heads=4, tie=False))
    assert torch.equal(zero.table.weight, drawn.table.weight)
    ids = torch.randint(61, (2, 20))
    assert zero(ids[:, :-1], ids[:, 1:]).item() == pytest.approx(np.log(61), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"zero_head": True}, "zero_head=True is for an untied head"),
        ({"input_grad_scale": -1.0}, "at least 0"),
        ({"input_grad_scale": 2.0, "tie": False}, "is for a tied embedding"),
        ({"embed_norm": True, "arch": "golf"}, "already part of arch='golf'"),
        ({"bigram_rows": 1}, "bigram_rows=1 must be at least 2"),
        ({"bigram_rows": -5}, "must be at least 2"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes, reason):
    with pytest.raises(BadRequest, match=reason):
        GPTConfig(**{"vocab": 61, "dim": 32, "layers": 2, "heads": 4, **changes})


@pytest.mark.parametrize(
    ("key", "value"), [("bigram_rows", 1), ("bigram_rows", -3), ("embed_norm", "yes"), ("bigram_rows", 31)]
)
def test_a_damaged_config_is_refused(key, value, tmp_path):
    model = scrambled(CHANGES["bigram"])
    config, tensors = model.export()
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnreadableInput):
        Decoder.open(tmp_path)
