"""What a config.json leaves out: the defaults of the transformers class that would read it.

Only the keys that the decoder reads. A test compares every one with the installed transformers.
"""

from __future__ import annotations

from typing import Any

_COMMON = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10_000.0,
    "attention_bias": False,
    "mlp_bias": False,
}
_QWEN = {
    **_COMMON,
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA = {
    **_COMMON,
    "hidden_act": "gelu_pytorch_tanh",
    "vocab_size": 256000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "hidden_activation": "gelu_pytorch_tanh",
}
_GEMMA2 = {
    **_GEMMA,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-05,
        "scale_attn_weights": True,
    },
    "llama": {
        **_COMMON,
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    "mistral": {
        **_COMMON,
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": _QWEN,
    "qwen3": {
        **_QWEN,
        "head_dim": 128,
    },
    "gemma": {
        **_GEMMA,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
    },
    "gemma2": _GEMMA2,
    "gemma3_text": {
        **_GEMMA2,
        "rope_theta": 1_000_000.0,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "final_logit_softcapping": None,
        "rope_local_base_freq": 10_000.0,
        "sliding_window_pattern": 6,
    },
    "gpt_neox": {
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "hidden_act": "gelu",
        "max_position_embeddings": 2048,
        "rotary_emb_base": 10_000.0,
        "rotary_pct": 0.25,
        "layer_norm_eps": 1e-05,
        "use_parallel_residual": True,
        "attention_bias": True,
    },
    "phi3": {
        **_COMMON,
        "rms_norm_eps": 1e-05,
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
    },
    "tiebeam_golf": {
        "rms_norm_eps": 2.0**-23,  # what torch's rms_norm takes when none is given
        "rope_theta": 10_000.0,
        "logit_softcap": 30.0,
    },
}
