"""Tiny models of many architectures, built by the real transformers.

Every config class is asked for its own keys, so one table of small sizes serves them all.
"""

from __future__ import annotations

from typing import Any

VOCAB = 96

# Small values for whichever of these keys a config class has.
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "n_embd": 32, "d_model": 32, "dim": 32, "emb_dim": 32,
    "intermediate_size": 48, "ffn_dim": 48, "n_inner": 48, "d_ff": 48, "hidden_dim": 48,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "rotary_dim": 4,
    "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "max_seq_len": 64,
    "max_source_positions": 64, "max_target_positions": 64,
    "embedding_size": 16, "word_embed_proj_dim": 32, "num_mel_bins": 8, "type_vocab_size": 2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "sep_token_id": 3,
    "forced_eos_token_id": None, "forced_bos_token_id": None, "suppress_tokens": None, "begin_suppress_tokens": None,
    "state_size": 4, "time_step_rank": 4, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "query_pre_attn_scalar": 8, "sliding_window": 8, "num_hidden_groups": 1,
    "mup_base_width": 32, "attention_window": 4,
}  # fmt: skip

CAUSAL = [
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt2", "gpt_neo",
    "gpt_neox", "gptj", "opt", "bloom", "falcon", "mpt", "stablelm", "starcoder2", "olmo", "olmo2", "cohere",
    "granite", "mamba", "codegen", "xglm", "biogpt", "smollm3", "glm4", "helium", "nemotron", "persimmon",
    "cohere2", "qwen3_moe", "mixtral",
]  # fmt: skip
MASKED = ["bert", "roberta", "albert", "distilbert", "electra", "modernbert"]
SEQ2SEQ = ["t5", "bart", "pegasus", "m2m_100"]
SPEECH = ["whisper"]

SPECIAL: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global"], 2]]},
    "falcon": {"new_decoder_architecture": False, "multi_query": True, "alibi": False},
    "mpt": {"expansion_ratio": 2},
}


def build(model_type: str, **changes: Any) -> Any:
    """A random tiny model with a vocabulary head, of that type, deterministic."""
    import torch
    import transformers

    plain = transformers.CONFIG_MAPPING[model_type]()
    settable = plain.to_dict()  # not hasattr: some sizes are read-only properties
    known = {key: value for key, value in SIZES.items() if key in settable}
    config = transformers.CONFIG_MAPPING[model_type](**{**known, **SPECIAL.get(model_type, {}), **changes})
    torch.manual_seed(0)
    return auto_class(model_type).from_config(config).eval()


def auto_class(model_type: str) -> Any:
    import transformers

    if model_type in MASKED:
        return transformers.AutoModelForMaskedLM
    if model_type in SEQ2SEQ:
        return transformers.AutoModelForSeq2SeqLM
    if model_type in SPEECH:
        return transformers.AutoModelForSpeechSeq2Seq
    return transformers.AutoModelForCausalLM
