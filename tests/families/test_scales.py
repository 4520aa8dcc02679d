"""Embedding and logit scales, compared with the real models of transformers."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.transformers_peer import config_class, from_json, torch, transformers
from tiebeam.decode.numpy.runnable import spec_of
from tiebeam.errors import UnreadableInput
from tiebeam.families import Architecture, Scales, known_types, lookup, scales
from tiebeam.families.registry import families
from tiebeam.families.scales import scale_keys

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "pad_token_id": 0,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
BART = {
    "vocab_size": 50,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "pad_token_id": 0,
}
DECODERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma": {},
    "gemma2": {"final_logit_softcapping": 3.0},
    "gemma3_text": {"final_logit_softcapping": None, "sliding_window": 8, "layer_types": ["full_attention"]},
    "vaultgemma": {"final_logit_softcapping": 2.0},
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"layer_types": ["full_attention"]},
    "granite": {"embedding_multiplier": 12.0, "logits_scaling": 8.0},
    "hyperclovax": {"embedding_multiplier": 3.0, "logits_scaling": 0.5},
    "minicpm3": {
        "scale_emb": 7,
        "dim_model_base": 8,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "head_dim": None,
        "num_key_value_heads": 2,
    },
    "nanochat": {"final_logit_softcapping": 1.5},
    "xglm": {"d_model": 32, "num_layers": 1, "attention_heads": 2, "ffn_dim": 32},
    "biogpt": {},
}


def architecture_of(model_type: str) -> Architecture:
    found = lookup(model_type)
    assert found is not None
    return found


def tiny(model_type, **more):
    config = {"model_type": model_type, **SMALL, **DECODERS[model_type], **more}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(from_json(model_type, config)).eval()
    return config, model


@pytest.mark.parametrize("model_type", DECODERS)
def test_logits_equal_scaled_hidden_states_times_the_head(model_type):
    config, model = tiny(model_type)
    factors = scales(config, architecture_of(model_type))
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        for parameter in (model.get_output_embeddings().weight,):
            parameter.mul_(20)  # so that a cap would show
        out = model(ids, output_hidden_states=True)
        expected = out.hidden_states[-1] @ model.get_output_embeddings().weight.T * factors.logits
        if factors.softcap:
            expected = factors.softcap * torch.tanh(expected / factors.softcap)
    torch.testing.assert_close(out.logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model_type", [name for name in DECODERS if name not in ("nanochat", "xglm", "biogpt")])
def test_the_first_layer_input_is_the_scaled_embedding(model_type):
    config, model = tiny(model_type)
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        first = model(ids, output_hidden_states=True).hidden_states[0]
    expected = model.get_input_embeddings().weight[ids] * scales(config, architecture_of(model_type)).input
    torch.testing.assert_close(first, expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model_type", ["bart", "mbart", "m2m_100", "plbart"])
@pytest.mark.parametrize("flag", [{}, {"scale_embedding": True}, {"scale_embedding": False}])
def test_scale_embedding_enables_the_input_scale(model_type, flag):
    config = {"model_type": model_type, **BART, **flag}
    model = transformers.AutoModelForSeq2SeqLM.from_config(from_json(model_type, config))
    embed = model.get_input_embeddings()
    ids = torch.arange(1, 9)
    torch.testing.assert_close(embed(ids), embed.weight[ids] * scales(config, architecture_of(model_type)).input)


@pytest.mark.parametrize("flag", [{}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}])
@pytest.mark.parametrize("model_type", ["t5", "umt5", "longt5", "mt5"])
def test_t5_scales_its_output_unless_the_flag_says_otherwise(model_type, flag):
    config = {
        "model_type": model_type,
        "vocab_size": 50,
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 32,
        "num_layers": 1,
        "num_heads": 2,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        **flag,
    }
    model = transformers.AutoModelForSeq2SeqLM.from_config(from_json(model_type, config)).eval()
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        out = model(input_ids=ids, decoder_input_ids=ids, output_hidden_states=True)
        expected = (
            out.decoder_hidden_states[-1] @ model.lm_head.weight.T * scales(config, architecture_of(model_type)).logits
        )
    torch.testing.assert_close(out.logits, expected, rtol=1e-5, atol=1e-5)


def test_every_default_in_the_table_is_the_default_of_the_config_class():
    wrong, checked = [], 0
    for model_type in known_types():
        architecture = architecture_of(model_type)
        if architecture.remote or model_type == "gemma4_assistant":
            continue
        defaults = scale_keys(architecture)
        if not defaults:
            continue
        config = config_class(model_type)()
        inner = getattr(config, architecture.text) if architecture.text else config
        for key, default in defaults.items():
            if key == "tie_word_embeddings":
                continue
            actual = getattr(inner, key)
            checked += 1
            if (1.0 if actual is None and key == "logit_scale" else actual) != default:
                wrong.append((model_type, key, actual, default))
    assert not wrong
    assert checked > 40


def test_a_type_has_its_scales_in_its_family_file_or_in_the_table_not_in_both() -> None:
    for name, family in families().items():
        architecture = lookup(name)
        if family.scales is not None and architecture is not None:
            assert (architecture.input_scale, architecture.logit_scale, architecture.softcap) == (None,) * 3, name


def test_the_decoder_uses_these_scales() -> None:
    for name, family in families().items():
        architecture = lookup(name)
        if family.spec is not None and architecture is not None:
            config = {"model_type": name, **SMALL, "n_embd": 32, "n_head": 2}
            assert spec_of(config).scales == scales(config, architecture), name


def test_factors_come_from_the_text_config():
    config = {"text_config": {"hidden_size": 64, "final_logit_softcapping": 5.0}}
    assert scales(config, architecture_of("gemma3n")) == Scales(8.0, 1.0, 5.0)


@pytest.mark.parametrize("value", ["2", 0, True, []])
def test_a_scale_that_is_not_a_number_is_refused(value):
    with pytest.raises(UnreadableInput, match=r"logit_scale is .*; a scale is a number"):
        scales({"logit_scale": value}, architecture_of("cohere"))


def test_a_missing_hidden_size_is_named_in_the_error():
    with pytest.raises(UnreadableInput, match="hidden_size"):
        scales({}, architecture_of("gemma"))
