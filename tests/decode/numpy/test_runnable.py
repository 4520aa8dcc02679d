"""Model configs: defaults, old and new key names, and errors that name the key."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tiebeam.decode.numpy.runnable import RUNNABLE, spec_of
from tiebeam.errors import UnreadableInput
from tiebeam.families.registry import families
from tiebeam.families.spec import Spec


def comparable(spec: Spec) -> dict[str, Any]:
    plain = dataclasses.asdict(spec)
    for layer in plain["layers"]:
        if layer["rope"]:
            layer["rope"].pop("scaling")
    return plain


@pytest.mark.parametrize("family", [name for name, family in families().items() if family.spec and family.architecture])
def test_defaults_are_those_of_transformers(family):
    transformers = pytest.importorskip("transformers")
    written = transformers.CONFIG_MAPPING[family]().to_dict()
    assert comparable(spec_of({"model_type": family})) == comparable(spec_of(written))


def test_rotary_settings_are_read_in_both_spellings():
    sizes = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    older = spec_of({**sizes, "rope_theta": 5e5, "rope_scaling": {"type": "llama3", **scaling}})
    newer = spec_of({**sizes, "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **scaling}})
    one, two = older.layers[0].rope, newer.layers[0].rope
    assert (one.kind, one.theta, one.dim) == (two.kind, two.theta, two.dim) == ("llama3", 5e5, 16)
    assert all(one.scaling[key] == two.scaling[key] == value for key, value in scaling.items())


def test_gemma3_has_two_rotary_bases_in_both_spellings():
    older = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    for given in (older, {"rope_parameters": nested}):
        layers = spec_of({"model_type": "gemma3_text", **given}).layers
        sliding, full = layers[0].rope, layers[5].rope
        assert (sliding.kind, sliding.theta) == ("default", 1e4)
        assert (full.kind, full.theta, full.scaling["factor"]) == ("linear", 1e6, 8.0)
        assert layers[0].window == 4096
        assert layers[5].window is None


def test_gpt_neox_reads_its_own_names_for_rotary_settings():
    spec = spec_of({"model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 123.0})
    assert (spec.layers[0].rope.dim, spec.layers[0].rope.theta) == (48, 123.0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "has no model_type"),
        ({"model_type": "mamba"}, f"cannot run the architecture 'mamba'; it runs {', '.join(RUNNABLE)}"),
        ({"model_type": "llama", "hidden_size": "wide"}, "hidden_size is 'wide', not a positive whole number"),
        ({"model_type": "llama", "hidden_size": 0}, "hidden_size is 0, not a positive whole number"),
        ({"model_type": "llama", "num_hidden_layers": 1 << 30}, "exceeds the limit of 10,000"),
        ({"model_type": "llama", "num_attention_heads": True}, "num_attention_heads is True, not a positive"),
        ({"model_type": "llama", "rms_norm_eps": None}, "rms_norm_eps is None, not a number"),
        ({"model_type": "llama", "hidden_act": "mish"}, "the decoder has no activation 'mish'"),
        (
            {"model_type": "llama", "num_key_value_heads": 5},
            "32 attention heads are not a multiple of 5",
        ),
        ({"model_type": "gpt2", "n_embd": 10, "n_head": 3}, "a width of 10 does not divide into 3 attention heads"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "spiral"}}, "has no rotary scaling 'spiral'"),
        ({"model_type": "llama", "rope_scaling": 3}, "rope_scaling is 3, not an object"),
        ({"model_type": "llama", "partial_rotary_factor": 0.01}, "rotary positions need an even part of a head"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "a kind for each of the 32 layers"),
        ({"model_type": "qwen2", "num_hidden_layers": 1, "layer_types": ["linear_attention"]}, "'linear_attention'"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "runs causal models only"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "no encoder to attend to"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}, r"quantised \(gptq\)"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_unsupported_configs_are_refused_in_one_sentence(config, message):
    with pytest.raises(UnreadableInput, match=message) as caught:
        spec_of(config)
    assert "\n" not in str(caught.value)
