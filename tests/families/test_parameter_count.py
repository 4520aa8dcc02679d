"""Parameter counts from config.json alone, compared with models that transformers builds and with published totals."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from helpers.transformers_peer import classes, from_json, torch, transformers
from tiebeam.families import count_from_config, countable_types

_LLAMA: dict[str, list[Any]] = {
    "vocab_size": [96, 131],
    "hidden_size": [32, 64],
    "intermediate_size": [48, 100],
    "num_hidden_layers": [1, 3],
    "num_attention_heads": [4, 8],
    "num_key_value_heads": [1, 2, 4],
}
_HEAD_DIM: dict[str, list[Any]] = {"head_dim": [None, 8, 24]}
_BIAS: dict[str, list[Any]] = {"attention_bias": [True, False, ...]}
_GPT: dict[str, list[Any]] = {
    "vocab_size": [96, 131],
    "n_embd": [32, 64],
    "n_layer": [1, 3],
    "n_head": [4],
    "n_inner": [None, 50, ...],
}
_T5: dict[str, list[Any]] = {
    "vocab_size": [96, 131],
    "d_model": [32, 48],
    "d_kv": [8, 16],
    "d_ff": [40],
    "num_layers": [1, 2],
    "num_decoder_layers": [1, 3, None, ...],
    "num_heads": [2, 4],
    "relative_attention_num_buckets": [8, 32, ...],
    "feed_forward_proj": ["relu", "gated-gelu", "gated-silu", ...],
}
# What a config.json of each type may say; ... leaves the key out.
CHOICES: dict[str, dict[str, list[Any]]] = {
    "llama": _LLAMA | _BIAS | {"mlp_bias": [True, False, ...], "head_dim": [None, 8, 24, ...]},
    "granite": _LLAMA | _BIAS | {"mlp_bias": [True, False, ...]},
    "smollm3": _LLAMA | _BIAS | {"mlp_bias": [True, False, ...], "pad_token_id": [0]},
    "mistral": _LLAMA | _HEAD_DIM,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | _BIAS | {"head_dim": [8, 24, ...]},
    "qwen3_moe": _LLAMA
    | _BIAS
    | {
        "head_dim": [8, 24],
        "num_experts": [4],
        "moe_intermediate_size": [20],
        "decoder_sparse_step": [1, 2],
        "num_experts_per_tok": [2],
        "mlp_only_layers": [[], [0], [1]],
    },
    "mixtral": _LLAMA | _HEAD_DIM | {"num_local_experts": [2, 4, ...]},
    "gemma": _LLAMA | _BIAS | {"head_dim": [8, 24, ...]},
    "gemma2": _LLAMA | _BIAS | {"head_dim": [8, 24, ...]},
    "gemma3_text": _LLAMA | _BIAS | {"head_dim": [8, 24, ...]},
    "phi3": _LLAMA | {"pad_token_id": [0]},
    "phi": _LLAMA | {"qk_layernorm": [True, False, ...]},
    "olmo": _LLAMA | _BIAS,
    "olmo2": _LLAMA | _BIAS,
    "stablelm": _LLAMA
    | {
        "use_qkv_bias": [True, False, ...],
        "qk_layernorm": [True, False, ...],
        "use_parallel_residual": [True, False, ...],
    },
    "cohere": _LLAMA | _BIAS | {"use_qk_norm": [True, False, ...]},
    "cohere2": _LLAMA | _BIAS | {"head_dim": [8, 24, ...]},
    "starcoder2": _LLAMA | {"use_bias": [True, False, ...]},
    "gpt2": _GPT | {"n_positions": [20, ...]},
    "gptj": _GPT | {"rotary_dim": [4]},
    "gpt_neo": {
        "vocab_size": [96],
        "hidden_size": [32, 64],
        "num_layers": [2],
        "attention_types": [[[["global"], 2]]],
        "num_heads": [4],
        "intermediate_size": [None, 50, ...],
        "max_position_embeddings": [20, ...],
    },
    "gpt_neox": {key: _LLAMA[key] for key in _LLAMA if key != "num_key_value_heads"} | _BIAS,
    "opt": {
        "vocab_size": [96],
        "hidden_size": [32, 64],
        "num_hidden_layers": [1, 3],
        "num_attention_heads": [4],
        "ffn_dim": [50],
        "word_embed_proj_dim": [16, 32, None, ...],
        "max_position_embeddings": [20, ...],
        "enable_bias": [True, False, ...],
        "layer_norm_elementwise_affine": [True, False, ...],
        "do_layer_norm_before": [True, False, ...],
        "_remove_final_layer_norm": [True, False, ...],
        "pad_token_id": [0],
    },
    "bloom": {"vocab_size": [96, 131], "hidden_size": [32, 64], "n_layer": [1, 3], "n_head": [4]},
    "mamba": {
        "vocab_size": [96],
        "hidden_size": [32, 40],
        "num_hidden_layers": [1, 3],
        "state_size": [8, 16, ...],
        "expand": [1, 2, ...],
        "conv_kernel": [2, 4, ...],
        "time_step_rank": ["auto", 3, ...],
        "use_bias": [True, False, ...],
        "use_conv_bias": [True, False, ...],
    },
    "mpt": {"vocab_size": [96], "d_model": [32, 64], "n_heads": [4], "n_layers": [1, 3], "expansion_ratio": [2, ...]},
    "falcon": {
        "vocab_size": [96],
        "hidden_size": [32, 64],
        "num_hidden_layers": [1, 3],
        "num_attention_heads": [4],
        "num_kv_heads": [2, None, ...],
        "new_decoder_architecture": [True, False, ...],
        "multi_query": [True, False, ...],
        "parallel_attn": [True, False, ...],
        "bias": [True, False, ...],
        "num_ln_in_parallel_attn": [1, 2, None, ...],
        "ffn_hidden_size": [50, None, ...],
    },
    "t5": _T5,
    "mt5": _T5,
    "umt5": _T5,
}


def draw(model_type: str, number: int) -> list[dict]:
    """Random configs of a type, the same on every run."""
    rng = random.Random(model_type)
    configs = []
    for _ in range(number):
        picked = {key: rng.choice(values) for key, values in CHOICES[model_type].items()}
        configs.append({"model_type": model_type, **{k: v for k, v in picked.items() if v is not ...}})
    return configs


def parameters(config: dict, tied: bool) -> int:
    """Unique parameters of the model that transformers builds from this config.json."""
    wanted = from_json(config["model_type"], config)
    wanted.tie_word_embeddings = tied
    name = next(n for n in classes(config["model_type"]) if n.endswith(("ForCausalLM", "LMHeadModel", "Generation")))
    with torch.device("meta"):
        model = getattr(transformers, name)._from_config(wanted)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("model_type", CHOICES)
def test_the_count_equals_that_of_the_model_transformers_builds(model_type):
    for config in draw(model_type, 12):
        counted = count_from_config(config)
        assert counted is not None, config
        assert counted.total_tied == parameters(config, tied=True), config
        if "t5" in model_type:  # without the flag, encoder and decoder would part too, which no t5 does
            assert counted.total_untied == counted.total_tied + counted.matrix
        else:
            assert counted.total_untied == parameters(config, tied=False), config


def test_every_countable_type_is_checked():
    assert set(CHOICES) == set(countable_types())


def _llama(vocab, hidden, inner, layers, heads, kv, **more):
    return {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        **more,
    }


# (config.json as published, tied, parameters as published)
PUBLISHED = {
    "TinyLlama 1.1B": (_llama(32000, 2048, 5632, 22, 32, 4), False, 1_100_048_384),
    "Llama 2 7B": (_llama(32000, 4096, 11008, 32, 32, 32), False, 6_738_415_616),
    "Llama 3 8B": (_llama(128256, 4096, 14336, 32, 32, 8), False, 8_030_261_248),
    "Llama 3 70B": (_llama(128256, 8192, 28672, 80, 64, 8), False, 70_553_706_496),
    "Llama 3.2 1B": (_llama(128256, 2048, 8192, 16, 32, 8, head_dim=64), True, 1_235_814_400),
    "Llama 3.2 3B": (_llama(128256, 3072, 8192, 28, 24, 8, head_dim=128), True, 3_212_749_824),
    "SmolLM2 135M": (_llama(49152, 576, 1536, 30, 9, 3), True, 134_515_008),
    "SmolLM2 360M": (_llama(49152, 960, 2560, 32, 15, 5), True, 361_821_120),
    "Mistral 7B": (_llama(32000, 4096, 14336, 32, 32, 8, model_type="mistral"), False, 7_241_732_096),
    "Mixtral 8x7B": (
        _llama(32000, 4096, 14336, 32, 32, 8, model_type="mixtral", num_local_experts=8),
        False,
        46_702_792_704,
    ),
    "Qwen2.5 0.5B": (_llama(151936, 896, 4864, 24, 14, 2, model_type="qwen2"), True, 494_032_768),
    "Qwen2.5 7B": (_llama(152064, 3584, 18944, 28, 28, 4, model_type="qwen2"), False, 7_615_616_512),
    "Qwen3 0.6B": (_llama(151936, 1024, 3072, 28, 16, 8, model_type="qwen3", head_dim=128), True, 596_049_920),
    "Phi-3 mini": (_llama(32064, 3072, 8192, 32, 32, 32, model_type="phi3"), False, 3_821_079_552),
    "Phi-4 mini": (_llama(200064, 3072, 8192, 32, 24, 8, model_type="phi3"), True, 3_836_021_760),
    "Phi-2": (_llama(51200, 2560, 10240, 32, 32, 32, model_type="phi"), False, 2_779_683_840),
    "Gemma 2B": (_llama(256000, 2048, 16384, 18, 8, 1, model_type="gemma", head_dim=256), True, 2_506_172_416),
    "Gemma 7B": (_llama(256000, 3072, 24576, 28, 16, 16, model_type="gemma", head_dim=256), True, 8_537_680_896),
    "Gemma 2 2B": (_llama(256000, 2304, 9216, 26, 8, 4, model_type="gemma2", head_dim=256), True, 2_614_341_888),
    "Gemma 3 1B": (_llama(262144, 1152, 6912, 26, 4, 1, model_type="gemma3_text", head_dim=256), True, 999_885_952),
    "OLMo 2 7B": (_llama(100352, 4096, 11008, 32, 32, 32, model_type="olmo2"), False, 7_298_617_344),
    "StarCoder2 3B": (_llama(49152, 3072, 12288, 30, 24, 2, model_type="starcoder2"), True, 3_030_371_328),
    "GPT-2 small": ({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12}, True, 124_439_808),
    "GPT-2 XL": (
        {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 1600, "n_layer": 48, "n_head": 25},
        True,
        1_557_611_200,
    ),
    "GPT-J 6B": ({"model_type": "gptj", "vocab_size": 50400, "n_embd": 4096, "n_layer": 28}, False, 6_050_882_784),
    "Pythia 70M": (
        {
            "model_type": "gpt_neox",
            "vocab_size": 50304,
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
        },
        False,
        70_426_624,
    ),
    "OPT 125M": (
        {
            "model_type": "opt",
            "vocab_size": 50272,
            "hidden_size": 768,
            "ffn_dim": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "word_embed_proj_dim": 768,
        },
        True,
        125_239_296,
    ),
    "OPT 350M": (
        {
            "model_type": "opt",
            "vocab_size": 50272,
            "hidden_size": 1024,
            "ffn_dim": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
        },
        True,
        331_196_416,
    ),
    "BLOOM 560M": ({"model_type": "bloom", "vocab_size": 250880, "n_embed": 1024, "n_layer": 24}, True, 559_214_592),
    "Mamba 130M": (
        {"model_type": "mamba", "vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 24},
        True,
        129_135_360,
    ),
    "Falcon 7B": (
        {
            "model_type": "falcon",
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
        },
        True,
        6_921_720_704,
    ),
    "MPT 7B": ({"model_type": "mpt", "vocab_size": 50432, "d_model": 4096, "n_layers": 32}, True, 6_649_286_656),
    "T5 small": (
        {
            "model_type": "t5",
            "vocab_size": 32128,
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 2048,
            "num_layers": 6,
            "num_heads": 8,
        },
        True,
        60_506_624,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_totals_are_matched_exactly(name):
    config, tied, total = PUBLISHED[name]
    counted = count_from_config(config)
    assert (counted.total_tied if tied else counted.total_untied) == total


def test_the_parts_add_up_and_the_head_bias_is_a_non_embedding_parameter():
    counted = count_from_config(PUBLISHED["Phi-4 mini"][0])
    assert counted.matrix == 614_596_608
    assert counted.total_tied == counted.trunk + counted.matrix
    assert counted.total_untied == counted.trunk + 2 * counted.matrix
    gptj = count_from_config(PUBLISHED["GPT-J 6B"][0])
    assert gptj.head_bias == 50400
    assert gptj.total_tied == gptj.trunk + gptj.matrix
    tiny = count_from_config(PUBLISHED["TinyLlama 1.1B"][0])
    assert tiny.total_tied == 1_034_512_384
    assert tiny.total_untied - tiny.total_tied == 65_536_000


@pytest.mark.parametrize("model_type", [None, "deepseek_v3", "bert", 3, ["llama"]])
def test_other_architectures_are_not_counted(model_type):
    assert count_from_config({**PUBLISHED["Llama 2 7B"][0], "model_type": model_type}) is None


def test_a_config_without_a_required_size_is_not_counted():
    full = PUBLISHED["Llama 2 7B"][0]
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    wrong: list[Any] = [None, "4096", -1, 0, 1.5, True, []]
    for key, value in itertools.product(needed, wrong):
        assert count_from_config({**full, key: value}) is None
    assert count_from_config({**full, "attention_bias": "yes"}) is None
