"""GGUF files of tiny models, written as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

ARCHITECTURE = {
    "gpt_neox": "gptneox",
    "gemma3_text": "gemma3",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
}
FAMILIES = [
    "gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt_neox", "phi3",
    "olmo2",
    "smollm3",
    "cohere2",
    "qwen3_moe",
    "mixtral",
    "granite",
]  # fmt: skip
PERMUTED = ("llama", "mistral", "mixtral", "smollm3", "granite")
METADATA = {
    "embedding_multiplier": "embedding_scale",
    "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "logit_scale": "logit_scale",
}  # config key -> metadata key of numbers that only some families have


def neighbours(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of q and k rows for the llama family: rotary pairs side by side."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def converted(family: str, name: str, value: np.ndarray, config: Any) -> np.ndarray:
    """What convert_hf_to_gguf.py does to the numbers."""
    if family == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return value.T
    if family in PERMUTED and ".q_proj." in name:
        return neighbours(value, config.num_attention_heads)
    if family in PERMUTED and ".k_proj." in name:
        return neighbours(value, config.num_key_value_heads)
    if family.startswith("gemma") and name.endswith("norm.weight"):
        return value + 1
    if ".query_key_value." in name:
        heads = config.num_attention_heads
        return value.reshape(heads, 3, -1, *value.shape[1:]).swapaxes(0, 1).reshape(value.shape)
    return value


def tensors(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Parameters (a tied head is not among them), the gate and up of all experts as two tensors."""
    for name, parameter in model.named_parameters():
        value = parameter.detach().numpy()
        if name.endswith("experts.gate_up_proj"):
            half = value.shape[1] // 2  # [E, 2M, D]
            yield name.replace("gate_up_proj", "gate_proj.weight"), value[:, :half]
            yield name.replace("gate_up_proj", "up_proj.weight"), value[:, half:]
        else:
            yield name + ".weight" if name.endswith("experts.down_proj") else name, value


def write_gguf(model: Any, path: Path, store: str = "F32", **metadata: Any) -> Path:
    family, config = model.config.model_type, model.config
    arch = ARCHITECTURE.get(family, family)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    inner = getattr(config, "intermediate_size", None) or config.n_inner
    writer.add_feed_forward_length(inner)
    if family in ("gpt2", "gpt_neox"):
        writer.add_layer_norm_eps(config.layer_norm_epsilon if family == "gpt2" else config.layer_norm_eps)
    elif family == "cohere2":
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_eps(config.layer_norm_eps)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None) and family != "phi3":
        writer.add_key_length(config.head_dim)
    if family == "gpt_neox":
        head = config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(head * config.rope_parameters["partial_rotary_factor"]))
        writer.add_parallel_residual(config.use_parallel_residual)
    if family in ("gemma2", "gemma3_text", "phi3", "cohere2") and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if family == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if family == "gemma3_text":
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    elif family != "gpt2":
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for key, stored in METADATA.items():
        if hasattr(config, key):
            writer.add_float32(f"{arch}.{stored}", float(getattr(config, key)))
    if family in ("qwen3_moe", "mixtral"):
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if family == "qwen3_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
    for key, value in metadata.items():
        add[type(value)](f"{arch}.{key.replace('__', '.')}", value)
    kind = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for name, value in tensors(model):
        value = converted(family, name, value, config)
        head = name in ("lm_head.weight", "embed_out.weight")  # which the package does not list for every family
        stored = "output.weight" if head else names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        if value.ndim > 1 and store != "F32":
            quantised = gguf.quants.quantize(value, gguf.GGMLQuantizationType[store])
            writer.add_tensor(stored, quantised, raw_dtype=gguf.GGMLQuantizationType[store])
        else:
            writer.add_tensor(stored, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def options(family: str) -> dict[str, Any]:
    # the query scale is not in the file: llama.cpp takes the head's width; mistral's window is not written for llama
    by_family: dict[str, dict[str, Any]] = {
        "gemma2": {"query_pre_attn_scalar": 16},
        "gemma3_text": {"query_pre_attn_scalar": 16, "num_hidden_layers": 7},
        "mistral": {"sliding_window": None},
        "mixtral": {"sliding_window": None},
        "qwen3_moe": {"norm_topk_prob": True},
        "smollm3": {"num_hidden_layers": 5},
        "cohere2": {"num_hidden_layers": 5},
    }
    return by_family.get(family, {})
