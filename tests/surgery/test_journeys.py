"""untie then tie, checked with transformers: the same logits to the bit, and the bytes of the source at the end."""

import json

import pytest
import torch
from torch import nn

from helpers.tiny_models import SEQ2SEQ, auto_class, build
from tiebeam.errors import BadRequest
from tiebeam.inspection import inspect
from tiebeam.pair import Tie
from tiebeam.surgery import tie, untie

KINDS = ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "gpt2", "gpt_neox", "opt", "bert", "bart"]
PROVED = {"llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "gpt2", "gpt_neox", "opt"}


def save(kind, where, tied, **options):
    model = build(kind, tie_word_embeddings=tied)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)  # so that a lost bias changes the logits
    model.save_pretrained(where, **options)
    return model


def logits(model, kind):
    ids = torch.arange(4, 14)[None]
    inputs = {"decoder_input_ids": ids} if kind in SEQ2SEQ else {}
    with torch.no_grad():
        return model.eval()(input_ids=ids, **inputs).logits


def load(kind, where):
    model, info = auto_class(kind).from_pretrained(where, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model, model.get_input_embeddings().weight is model.get_output_embeddings().weight


@pytest.mark.parametrize("shards", ["10GB", "20KB"], ids=["one file", "shards"])
@pytest.mark.parametrize("kind", KINDS)
def test_untie_and_tie_again(kind, shards, tmp_path):
    source, untied, back = tmp_path / "source", tmp_path / "untied", tmp_path / "back"
    model = save(kind, source, True, max_shard_size=shards)
    outcome = untie(source, untied)
    assert outcome.proof.ran == (kind in PROVED)
    assert outcome.proof.largest == 0
    assert outcome.proof.engine == ("" if kind not in PROVED else "transformers" if kind == "opt" else "numpy")
    assert inspect(untied).pair.declared is False
    loaded, one = load(kind, untied)
    assert not one
    assert torch.equal(logits(loaded, kind), logits(model, kind))
    tie(untied, back)
    assert inspect(back).tie is Tie.SHARED
    loaded, one = load(kind, back)
    assert one
    assert torch.equal(logits(loaded, kind), logits(model, kind))
    for path in source.iterdir():
        assert (back / path.name).read_bytes() == path.read_bytes(), path.name


def test_untie_handles_names_without_the_model_prefix(tmp_path):
    from safetensors.torch import load_file, save_file

    model = save("gpt2", tmp_path / "m", True)
    weights = tmp_path / "m" / "model.safetensors"
    bare = {name.removeprefix("transformer."): tensor for name, tensor in load_file(weights).items()}
    save_file(bare, weights, {"format": "pt"})
    untie(tmp_path / "m", tmp_path / "u")
    loaded, one = load("gpt2", tmp_path / "u")
    assert not one
    assert torch.equal(logits(loaded, "gpt2"), logits(model, "gpt2"))


def test_untie_keeps_the_bits_of_a_bf16_model(tmp_path):
    model = build("llama", tie_word_embeddings=True).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "m")
    untie(tmp_path / "m", tmp_path / "u")
    loaded, one = load("llama", tmp_path / "u")
    assert not one
    assert loaded.lm_head.weight.dtype == torch.bfloat16
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_the_flag_is_set_at_every_level_of_a_multimodal_config(tmp_path):
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    tiny = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = LlavaConfig(
        text_config={
            "model_type": "llama",
            **tiny,
            "num_key_value_heads": 4,
            "vocab_size": 96,
            "tie_word_embeddings": True,
        },
        vision_config={
            "model_type": "clip_vision_model",
            **tiny,
            "image_size": 8,
            "patch_size": 4,
            "projection_dim": 32,
        },
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "m")
    untie(tmp_path / "m", tmp_path / "u")
    written = json.loads((tmp_path / "u" / "config.json").read_text())
    assert written["tie_word_embeddings"] is False
    assert written["text_config"]["tie_word_embeddings"] is False
    loaded = LlavaForConditionalGeneration.from_pretrained(tmp_path / "u")
    assert loaded.lm_head.weight is not loaded.get_input_embeddings().weight
    ids = torch.arange(4, 14)[None]
    assert torch.equal(loaded.eval()(input_ids=ids).logits, model(input_ids=ids).logits)
    tie(tmp_path / "u", tmp_path / "b")
    again = LlavaForConditionalGeneration.from_pretrained(tmp_path / "b")
    assert again.lm_head.weight is again.get_input_embeddings().weight


def test_t5_cannot_be_untied_in_a_file(tmp_path):
    save("t5", tmp_path / "m", True)
    with pytest.raises(BadRequest, match="whatever its config says"):
        untie(tmp_path / "m", tmp_path / "u")
    assert not (tmp_path / "u").exists()


@pytest.mark.parametrize("keep", ["embed", "head", "mean"])
def test_keep_uses_the_chosen_matrix_for_both(keep, tmp_path):
    model = save("llama", tmp_path / "m", False)
    E, W = model.model.embed_tokens.weight.data, model.lm_head.weight.data
    with pytest.raises(BadRequest, match="joint=True"):
        tie(tmp_path / "m", tmp_path / "t")
    tie(tmp_path / "m", tmp_path / "t", keep=keep)
    loaded, one = load("llama", tmp_path / "t")
    assert one
    assert torch.equal(loaded.lm_head.weight, {"embed": E, "head": W, "mean": (E + W) / 2}[keep])


def test_a_pytorch_checkpoint_becomes_safetensors(tmp_path):
    model = save("llama", tmp_path / "m", True)
    (tmp_path / "m" / "model.safetensors").unlink()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]  # two names of one storage
    turned = "model.layers.0.mlp.up_proj.weight"
    state[turned] = state[turned].T.contiguous().T  # the same values, strided
    torch.save(state, tmp_path / "m" / "pytorch_model.bin")
    untie(tmp_path / "m", tmp_path / "u")
    loaded, one = load("llama", tmp_path / "u")
    assert not one
    assert torch.equal(logits(loaded, "llama"), logits(model, "llama"))
    tie(tmp_path / "m", tmp_path / "t")
    loaded, one = load("llama", tmp_path / "t")
    assert one
    assert torch.equal(logits(loaded, "llama"), logits(model, "llama"))
    assert not (tmp_path / "t" / "pytorch_model.bin").exists()


def test_without_proof_no_model_is_run(tmp_path):
    save("llama", tmp_path / "m", True)
    assert untie(tmp_path / "m", tmp_path / "u", proof=False).proof is None
