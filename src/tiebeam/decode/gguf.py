"""A GGUF's metadata -> the configuration that transformers would write for the same model.

One border, crossed once: from here on a GGUF is run like any other checkpoint. Facts that GGUF leaves out are
those that llama.cpp has in its code: Gemma's query scale and window pattern, and the tanh in GPT-2's GELU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import UnreadableInput

# general.architecture -> model_type
FAMILY = {
    "gpt2": "gpt2",
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "gptneox": "gpt_neox",
    "phi3": "phi3",
}
_SIZES = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "use_parallel_residual": "use_parallel_residual",
}
_GPT2_SIZES = {
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_inner": "feed_forward_length",
    "n_head": "attention.head_count",
    "n_positions": "context_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}


def config_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json's contents for a GGUF checkpoint."""
    metadata = checkpoint.metadata
    architecture = metadata.get("general.architecture")
    family = FAMILY.get(str(architecture), str(architecture))
    if metadata.get(f"{architecture}.expert_count"):
        raise UnreadableInput(f"{checkpoint.source} is a mixture of experts, which the decoder cannot run")
    config: dict[str, Any] = {"model_type": family}
    for key, stored in (_GPT2_SIZES if family == "gpt2" else _SIZES).items():
        value = metadata.get(f"{architecture}.{stored}")
        if value is not None:
            config[key] = value
    table = checkpoint.tensors.get("token_embd.weight") or checkpoint.tensors.get("output.weight")
    if table is not None and len(table.shape) == 2:
        config["vocab_size"] = table.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in checkpoint.tensors
    if family in ("llama", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"):
        config.update(attention_bias="if stored", mlp_bias="if stored")
    if family in ("gemma2", "gemma3_text") and "head_dim" in config:
        largest = config.get("num_hidden_layers") == (46 if family == "gemma2" else 62)
        config["query_pre_attn_scalar"] = (
            config["hidden_size"] // config["num_attention_heads"] if largest else config["head_dim"]
        )
    config |= _rotary(checkpoint, str(architecture), config)
    return config


def _rotary(checkpoint: Checkpoint, architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    get = {key: checkpoint.metadata.get(f"{architecture}.rope.{key}") for key in (
        "dimension_count", "scaling.type", "scaling.factor", "scaling.original_context_length", "scaling.attn_factor",
    )}  # fmt: skip
    found: dict[str, Any] = {}
    head_dim = config.get("head_dim")
    if head_dim is None and isinstance(config.get("hidden_size"), int) and config.get("num_attention_heads"):
        head_dim = config["hidden_size"] // config["num_attention_heads"]
    if get["dimension_count"] and head_dim:
        found["partial_rotary_factor"] = found["rotary_pct"] = get["dimension_count"] / head_dim
    scaling: dict[str, Any] = {}
    if get["scaling.type"] not in (None, "none"):
        scaling = {"rope_type": get["scaling.type"], "factor": get["scaling.factor"]}
    if get["scaling.original_context_length"]:
        scaling["original_max_position_embeddings"] = get["scaling.original_context_length"]
        found["original_max_position_embeddings"] = get["scaling.original_context_length"]
    if get["scaling.attn_factor"]:
        scaling["attention_factor"] = get["scaling.attn_factor"]
    if "rope_freqs.weight" in checkpoint.tensors:
        scaling = {"rope_type": "factors", "factors": checkpoint.tensor("rope_freqs.weight").tolist()}
    if "rope_factors_long.weight" in checkpoint.tensors:
        scaling["rope_type"] = "longrope"
        for length in ("long", "short"):
            name = f"rope_factors_{length}.weight"
            scaling[f"{length}_factor"] = checkpoint.tensor(name).tolist() if name in checkpoint.tensors else None
    if scaling.get("rope_type"):
        found["rope_scaling"] = scaling
    return found
