"""GGUF metadata -> the config.json that transformers would have for the same model, and the usual GGUF tensor names.

A GGUF is converted to a config once; after that it runs like any other checkpoint. What is particular to a
family is in its file, as a `Gguf`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tiebeam.errors import UnreadableInput
from tiebeam.families.config_fields import IF_STORED
from tiebeam.families.family import Family, TensorNames
from tiebeam.families.registry import families

NAMES = TensorNames(
    prefix="",
    embed="token_embd.weight",
    head="output.weight",
    final_norm="output_norm",
    layer="blk.{i}.",
    roles={
        "attn_norm": "attn_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "o": "attn_output",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "attn_post_norm": "post_attention_norm",
        "mlp_norm": "ffn_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
        "mlp_post_norm": "post_ffw_norm",
        "router": "ffn_gate_inp",
        "expert_gate": "ffn_gate_exps",
        "expert_up": "ffn_up_exps",
        "expert_down": "ffn_down_exps",
    },
    positions="position_embd.weight",
)
PAIRED_ROTARY_NAMES = replace(NAMES, paired_rotary=True)
"""For architectures whose q and k the converter reorders: Llama and those converted like it."""
FUSED_QKV_NAMES = replace(
    NAMES, roles={**{role: name for role, name in NAMES.roles.items() if role not in "qkv"}, "qkv": "attn_qkv"}
)

ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Frequencies of the rotary positions: part of the config, not of the model's tensors."""

KEYS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
"""config.json key -> metadata key without the architecture, for most families."""


def gguf_family(metadata: Mapping[str, Any]) -> Family | None:
    """The family of a GGUF by its general.architecture and whether it has experts; None when it has no file here."""
    architecture = metadata.get("general.architecture")
    experts = bool(metadata.get(f"{architecture}.expert_count"))
    for family in families().values():
        if family.gguf is not None and (family.gguf.architecture, family.gguf.experts) == (architecture, experts):
            return family
    return None


def config_from_gguf(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    read: Callable[[str], list[float]],
    source: str = "the GGUF",
) -> dict[str, Any]:
    """config.json's contents for a GGUF with these metadata and tensors; `read` gives a small tensor's numbers."""
    architecture = str(metadata.get("general.architecture"))
    family = gguf_family(metadata)
    if family is None:
        if metadata.get(f"{architecture}.expert_count"):
            raise UnreadableInput(
                f"{source} is a mixture of experts of the architecture {architecture!r}, which the decoder cannot run"
            )
        return {"model_type": architecture}
    assert family.gguf is not None
    config: dict[str, Any] = {"model_type": family.model_type}
    for key, stored in family.gguf.keys.items():
        value = metadata.get(f"{architecture}.{stored}")
        if value is not None:
            config[key] = value
    if "num_key_value_heads" in family.gguf.keys and "num_attention_heads" in config:
        config.setdefault("num_key_value_heads", config["num_attention_heads"])  # as llama.cpp does
    table = shapes.get("token_embd.weight") or shapes.get("output.weight")
    if table is not None and len(table) == 2:
        config["vocab_size"] = table[0]
    config["tie_word_embeddings"] = "output.weight" not in shapes
    config |= dict.fromkeys(family.gguf.biases, IF_STORED)
    config |= _rope(metadata, architecture, config, shapes, read)
    return config | family.gguf.complete(config)


def _rope(
    metadata: Mapping[str, Any],
    architecture: str,
    config: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    read: Callable[[str], list[float]],
) -> dict[str, Any]:
    get = {key: metadata.get(f"{architecture}.rope.{key}") for key in (
        "dimension_count", "scaling.type", "scaling.factor", "scaling.original_context_length", "scaling.attn_factor",
    )}  # fmt: skip
    found: dict[str, Any] = {}
    head_dim = config.get("head_dim")
    if head_dim is None and isinstance(config.get("hidden_size"), int) and config.get("num_attention_heads"):
        head_dim = config["hidden_size"] // config["num_attention_heads"]
    if get["dimension_count"] and head_dim:
        found["partial_rotary_factor"] = get["dimension_count"] / head_dim
    scaling: dict[str, Any] = {}
    if get["scaling.type"] not in (None, "none"):
        scaling = {"rope_type": get["scaling.type"], "factor": get["scaling.factor"]}
    if get["scaling.original_context_length"]:
        scaling["original_max_position_embeddings"] = get["scaling.original_context_length"]
        found["original_max_position_embeddings"] = get["scaling.original_context_length"]
    if get["scaling.attn_factor"]:
        scaling["attention_factor"] = get["scaling.attn_factor"]
    freqs, long, short = ROPE_TENSORS
    if freqs in shapes:
        scaling = {"rope_type": "factors", "factors": read(freqs)}
    if long in shapes:
        scaling["rope_type"] = "longrope"
        scaling["long_factor"] = read(long)
        scaling["short_factor"] = read(short) if short in shapes else None
    if scaling.get("rope_type"):
        found["rope_scaling"] = scaling
    return found
