"""The decoder's logits equal those of transformers, for every architecture, tied and untied, cached or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.lively_models import OPTIONS, TOLERANCE, lively, reference, save, sentence
from tiebeam.decode import RUNNABLE, Decoder
from tiebeam.decode.numpy.decoder import CHUNK

pytest.importorskip("transformers")

FAMILIES = [
    "gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt_neox", "phi3",
    "olmo2",
    "smollm3",
    "cohere2",
    "qwen3_moe",
    "mixtral",
    "granite",
]  # fmt: skip
LONG = 40  # several times the sliding window of 8


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == np.float32
    assert np.abs(expected).max() > 0.5, "a model that says nothing proves nothing"
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_every_runnable_family_is_compared():
    tested = {"gemma3" if family == "gemma3_text" else family for family in FAMILIES}
    assert tested | {"tiebeam_golf", "tiebeam_gpt"} == set(RUNNABLE)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_agree(family, tied, tmp_path):
    model = lively(family, tie_word_embeddings=tied)
    tokens = sentence(LONG)
    expected = reference(model, tokens)
    decoder = Decoder.open(save(model, tmp_path))
    assert (decoder.embed.rows is decoder.head.rows) == tied

    close(decoder.logits(tokens), expected)

    cache = decoder.cache(LONG)
    one_by_one = [decoder.unembed(decoder.forward([int(token)], cache)) for token in tokens]
    close(np.concatenate(one_by_one), expected)

    cache = decoder.cache(LONG)
    pieces = [tokens[a:b] for a, b in ((0, 1), (1, 7), (7, 8), (8, 29), (29, LONG))]
    close(np.concatenate([decoder.unembed(decoder.forward(piece, cache)) for piece in pieces]), expected)


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "gpt_neox"])
def test_16_bit_weights_are_read_exactly(family, stored, tmp_path):
    import torch
    import transformers

    save(lively(family), tmp_path, getattr(torch, stored))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    tokens = sentence(LONG)
    close(Decoder.open(tmp_path).logits(tokens), reference(model, tokens))


def test_a_prompt_longer_than_one_chunk_agrees(tmp_path):
    length = 2 * CHUNK + 3
    model = lively("qwen3", max_position_embeddings=length)
    tokens = sentence(length)
    close(Decoder.open(save(model, tmp_path)).logits(tokens), reference(model, tokens))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt2", {"scale_attn_weights": False}),
        ("gpt2", {"activation_function": "gelu"}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_key_value_heads": 1}),
        ("llama", {"num_key_value_heads": 4}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
        ("qwen3", {"attention_bias": True}),
        ("gemma", {"hidden_act": "gelu_pytorch_tanh"}),
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        ("gemma2", {"query_pre_attn_scalar": 3}),
        ("gemma3_text", {"num_hidden_layers": 7}),
        ("gemma3_text", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("gpt_neox", {"use_parallel_residual": False}),
        ("gpt_neox", {"attention_bias": False}),
        ("gpt_neox", {"rotary_pct": 0.5}),
        ("gpt_neox", {"hidden_act": "gelu_new"}),
        ("phi3", {"partial_rotary_factor": 0.5}),
        ("phi3", {"sliding_window": None}),
        ("olmo2", {"attention_bias": True, "num_key_value_heads": 4}),
        ("smollm3", {"num_hidden_layers": 5}),
        ("smollm3", {"no_rope_layers": [0, 1]}),
        ("smollm3", {"use_sliding_window": True, "no_rope_layers": [0, 1]}),
        ("cohere2", {"num_hidden_layers": 5, "logit_scale": 2.0}),
        ("cohere2", {"layer_types": ["full_attention", "sliding_attention"], "attention_bias": True}),
        ("qwen3_moe", {"norm_topk_prob": True}),
        ("qwen3_moe", {"mlp_only_layers": [0], "num_experts_per_tok": 3}),
        ("qwen3_moe", {"decoder_sparse_step": 2, "attention_bias": True}),
        ("mixtral", {"num_experts_per_tok": 1, "sliding_window": None}),
        ("granite", {"attention_bias": True, "mlp_bias": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(f"{k}={v}" for k, v in value.items()),
)
def test_the_options_of_a_family_agree(family, changes, tmp_path):
    model = lively(family, **changes)
    tokens = sentence(LONG)
    close(Decoder.open(save(model, tmp_path)).logits(tokens), reference(model, tokens))


@pytest.mark.parametrize(
    ("family", "without"),
    [
        ("mistral", {"sliding_window": None}),
        ("gemma2", {"sliding_window": 1000}),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("gemma2", {"final_logit_softcapping": None}),
        ("gemma3_text", {"sliding_window": 1000}),
        ("smollm3", {"no_rope_layers": [1, 1]}),
        ("cohere2", {"logit_scale": 1.0}),
        ("cohere2", {"sliding_window": 1000}),
        ("qwen3_moe", {"norm_topk_prob": True}),
        ("mixtral", {"num_experts_per_tok": 1}),
        *(("granite", {key: 1.0}) for key in OPTIONS["granite"]),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_ignoring_an_option_would_change_the_logits(family, without, tmp_path):
    """The comparison above fails if the decoder ignores them."""
    tokens = sentence(LONG)
    options: dict[str, dict[str, Any]] = {
        "gemma2": {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        "smollm3": {"no_rope_layers": [0, 1]},
    }
    small = options.get(family, {})
    with_part = Decoder.open(save(lively(family, **small), tmp_path / "with")).logits(tokens)
    without_part = Decoder.open(save(lively(family, **{**small, **without}), tmp_path / "without")).logits(tokens)
    assert np.abs(with_part - without_part).max() > 100 * TOLERANCE


ROPE = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn, mscale": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7,
        "mscale_all_dim": 1.3, "beta_fast": 8, "beta_slow": 2, "truncate": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ROPE)
def test_rotary_scalings_agree(kind, tmp_path):
    model = lively("llama", rope_parameters={"rope_theta": 100.0, **ROPE[kind]})
    tokens = sentence(LONG)
    expected = reference(model, tokens)
    close(Decoder.open(save(model, tmp_path)).logits(tokens), expected)
    if kind != "dynamic":  # which does nothing within the context
        plain = lively("llama", rope_parameters={"rope_theta": 100.0, "rope_type": "default"})
        assert np.abs(reference(plain, tokens) - expected).max() > 100 * TOLERANCE


@pytest.mark.parametrize("length", [12, LONG], ids=["short", "long"])
def test_longrope_agrees_within_and_beyond_the_original_context(length, tmp_path):
    factors = {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 2.0, 4.0, 8.0]}
    model = lively(
        "phi3",
        rope_parameters={"rope_type": "longrope", **factors},
        original_max_position_embeddings=16,
        max_position_embeddings=64,
    )
    tokens = sentence(length)
    close(Decoder.open(save(model, tmp_path)).logits(tokens), reference(model, tokens))


def test_the_text_part_of_multimodal_gemma3_agrees(tmp_path):
    import torch
    import transformers

    text = transformers.Gemma3TextConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, sliding_window=8, query_pre_attn_scalar=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )  # fmt: skip
    vision = transformers.SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, image_token_index=95)
    torch.manual_seed(0)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    tokens = sentence(20, vocab=90)
    decoder = Decoder.open(save(model, tmp_path))
    assert decoder.notes == ()
    close(decoder.logits(tokens), reference(model, tokens))


def test_a_bare_model_without_its_prefix_runs(tmp_path):
    """GPT-2 on the Hub has no `transformer.` before its names."""
    model = lively("gpt2")
    tokens = sentence(20)
    expected = reference(model, tokens)
    save(model.transformer, tmp_path)
    model.config.architectures = ["GPT2LMHeadModel"]
    model.config.save_pretrained(tmp_path)
    close(Decoder.open(tmp_path).logits(tokens), expected)


def test_hidden_states_are_what_the_head_sees(tmp_path):
    import torch

    model = lively("llama", tie_word_embeddings=False)
    tokens = sentence(20)
    decoder = Decoder.open(save(model, tmp_path))
    with torch.no_grad():
        expected = model.model(torch.from_numpy(tokens)[None]).last_hidden_state[0].numpy()
    np.testing.assert_allclose(decoder.hidden(tokens), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_the_same(family, tmp_path):
    import torch

    model = lively(family, eos_token_id=None)
    tokens = sentence(6)
    made = model.generate(torch.from_numpy(tokens)[None], max_new_tokens=24, do_sample=False, pad_token_id=0)
    decoder = Decoder.open(save(model, tmp_path))
    assert [token.id for token in decoder.generate(tokens.tolist(), 24)] == made[0, len(tokens) :].tolist()


def test_float64_agrees_with_torch_in_float64(tmp_path):
    """The same arithmetic, so the difference is rounding and nothing else."""
    import torch

    model = lively("gpt_neox")
    save(model, tmp_path)
    tokens = sentence(LONG)
    with torch.no_grad():
        expected = model.double()(torch.from_numpy(tokens)[None]).logits[0].numpy()
    found = Decoder.open(tmp_path, dtype="float64").logits(tokens)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)  # transformers keeps its angles in float32
