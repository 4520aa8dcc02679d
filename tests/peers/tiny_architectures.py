"""Tiny models of every architecture that the installed transformers can build.

A config class is asked for its defaults. Every size in it, at every level, is then replaced by a small one. What does
not build is named in `build_all`'s second result with the reason.
"""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCAB = 96
WIDTH = 32
MOST_PARAMETERS = 3_000_000

# Small values for whichever of these keys a config has, at any level.
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "n_embd": WIDTH, "d_model": WIDTH, "dim": WIDTH, "emb_dim": WIDTH,
    "embed_dim": WIDTH, "embedding_size": WIDTH, "word_embed_proj_dim": WIDTH, "n_embed": WIDTH,
    "intermediate_size": 48, "ffn_dim": 48, "n_inner": 48, "d_ff": 48, "hidden_dim": 48, "ffn_hidden_size": 48,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "mlp_dim": 48, "moe_intermediate_size": 24, "mlp_hidden_size": 48,
    "shared_expert_intermediate_size": 24, "moe_shared_expert_intermediate_size": 24, "shared_intermediate_size": 24,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_encoder_layers": 2, "depth": 2, "num_hidden_groups": 1,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "attention_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8,
    "rotary_dim": 4, "kv_heads": 2, "num_kv_heads": 2,
    "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "max_seq_len": 64, "max_sequence_length": 64,
    "max_source_positions": 64, "max_target_positions": 64, "num_mel_bins": 8, "type_vocab_size": 2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "sep_token_id": 3,
    "forced_eos_token_id": None, "forced_bos_token_id": None, "suppress_tokens": None, "begin_suppress_tokens": None,
    "image_token_id": 5, "video_token_id": 6, "audio_token_id": 7, "image_token_index": 5, "vision_start_token_id": 8,
    "vision_end_token_id": 9, "video_token_index": 6, "audio_token_index": 7, "vision_token_id": 10,
    "state_size": 4, "time_step_rank": 4, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "n_routed_experts": 4, "moe_num_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "query_pre_attn_scalar": 8, "sliding_window": 8, "attention_window": 4, "mup_base_width": 32, "window": 8,
    "image_size": 28, "patch_size": 14, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1, "out_hidden_size": WIDTH,
    "projection_dim": WIDTH, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 4, "mamba_d_ssm": 64,
    "mamba_n_groups": 1, "n_groups": 1, "lru_width": WIDTH, "num_nextn_predict_layers": 0,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 8, "attention_hidden_size": WIDTH, "global_attn_every_n_layers": 2,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "num_codebooks": 2, "max_window_layers": 1, "fullatt_block_indexes": [0], "out_indices": [1],
    "deepstack_visual_indexes": [0],
}  # fmt: skip
# Lists with one entry per layer are left to the class's default for the new number of layers.
_PER_LAYER = {"layer_types", "layers_block_type", "block_types", "mlp_layer_types", "no_rope_layers", "attention_types"}
SPECIAL: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global"], 2]], "attention_layers": ["global", "global"]},
    "marian": {"decoder_vocab_size": VOCAB, "pad_token_id": 0},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "roc_bert": {
        "pronunciation_vocab_size": 32,
        "shape_vocab_size": 32,
        "shape_embed_dim": 8,
        "pronunciation_embed_dim": 8,
    },
    "luke": {"entity_vocab_size": 16, "entity_emb_size": 8},
    "xlnet": {"d_inner": 48, "d_head": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "xlstm": {"embedding_dim": WIDTH, "hidden_size": WIDTH},
    "rembert": {"input_embedding_size": WIDTH, "output_embedding_size": WIDTH},
    "gemma3n_text": {
        "activation_sparsity_pattern": [0.0, 0.0],
        "layer_types": ["full_attention", "full_attention"],
        "num_kv_shared_layers": 0,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
    },
    "mamba2": {"num_heads": 8, "head_dim": 8, "expand": 2},
    "mamba": {"intermediate_size": 64, "time_step_rank": 2},
    "falcon_mamba": {"intermediate_size": 64, "time_step_rank": 2},
    "falcon": {
        "new_decoder_architecture": False,
        "multi_query": True,
        "alibi": False,
        "num_kv_heads": 1,
        "ffn_hidden_size": 128,
    },
    "gpt_neox": {"intermediate_size": 128},
    "phi": {"num_key_value_heads": 4, "intermediate_size": 128},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "phimoe": {"attention_bias": True, "lm_head_bias": True},
    "olmoe": {"num_key_value_heads": 4},
    "olmo3": {"layer_types": ["sliding_attention", "full_attention"]},
    "mpt": {"expansion_ratio": 2},
    "dbrx": {
        "attn_config": {"rope_theta": 1e4, "kv_n_heads": 2},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4},
    },
    "qwen2_vl": {
        "text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
    },
    "qwen2_5_vl": {
        "text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
    },
    "qwen3_vl": {
        "text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
    },
}
# Keys that published configs of a type have and its config class in transformers 5 does not write.
PUBLISHED: dict[str, dict[str, Any]] = {
    "olmo3": {"rope_theta": 1e4},
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True},
    "exaone4": {"sliding_window_pattern": "LG", "sliding_window": 8},
    "mamba2": {"intermediate_size": 64},
    "gpt_bigcode": {"n_inner": 128},
    "minimax_m2": {"shared_intermediate_size": 24, "rotary_dim": 4},
    "falcon": {"num_kv_heads": 1},
    "exaone_moe": {"is_moe_layer": [False, True]},
    "solar_open": {"intermediate_size": 48, "first_k_dense_replace": 0},
    "qwen3_vl": {"text_config": {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}}},
    "qwen3_vl_moe": {
        "text_config": {
            "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]},
            "norm_topk_prob": True,
        }
    },
}
TASKS = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "IMAGE_TEXT_TO_TEXT": "AutoModelForImageTextToText",
    "SEQ_TO_SEQ_CAUSAL_LM": "AutoModelForSeq2SeqLM",
    "MASKED_LM": "AutoModelForMaskedLM",
    "SPEECH_SEQ_2_SEQ": "AutoModelForSpeechSeq2Seq",
}


def shrink(document: Any) -> Any:
    """A config dictionary with every known size made small, at every level."""
    if not isinstance(document, dict):
        return document
    small = {}
    for key, value in document.items():
        if key in _PER_LAYER or key in ("transformers_version", "architectures"):
            continue
        small[key] = SIZES[key] if key in SIZES and value is not None and not isinstance(value, dict) else shrink(value)
    return small


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        inner = merged.get(key)
        merged[key] = merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def task_of(model_type: str) -> str | None:
    """The first of TASKS that transformers has a class for."""
    from transformers.models.auto import modeling_auto

    for task in TASKS:
        if model_type in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES"):
            return task
    return None


def tiny_config(model_type: str) -> Any:
    import transformers

    cls = transformers.CONFIG_MAPPING[model_type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        document = merge(shrink(cls().to_dict()), SPECIAL.get(model_type, {}))
        return cls.from_dict(copy.deepcopy(document))


def set_flags(config: Any, tied: bool) -> None:
    """Set tie_word_embeddings at every level of a config object."""
    from transformers import PreTrainedConfig

    config.tie_word_embeddings = tied
    for inner in list(vars(config).values()):
        if isinstance(inner, PreTrainedConfig):
            set_flags(inner, tied)


def build(model_type: str, tied: bool | None = None) -> Any:
    """A tiny random model with its vocabulary head, deterministic; `tied` sets the flag at every level."""
    import torch
    import transformers

    config = tiny_config(model_type)
    if tied is not None:
        set_flags(config, tied)
    task = task_of(model_type)
    if task is None:
        raise ValueError(f"transformers has no language model class for {model_type}")
    torch.manual_seed(0)
    with torch.device("meta"):
        count = sum(p.numel() for p in getattr(transformers, TASKS[task]).from_config(config).parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count:,} parameters; a size key is missing from SIZES")
    torch.manual_seed(0)
    return getattr(transformers, TASKS[task]).from_config(config).eval()


def build_all() -> tuple[dict[str, Any], dict[str, str]]:
    """(model type -> model, model type -> why it cannot be built)."""
    from transformers.models.auto import modeling_auto

    types = sorted({t for task in TASKS for t in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")})
    built: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for model_type in types:
        try:
            built[model_type] = build(model_type)
        except Exception as problem:
            failed[model_type] = f"{type(problem).__name__}: {problem}".splitlines()[0][:160]
    return built, failed
