"""Where each family keeps the tensors of its trunk, in Hugging Face files, in GGUF, and in our own.

Roles of a block: attn_norm, q k v (or qkv), o, q_norm k_norm, attn_post_norm, mlp_norm, gate up (or gate_up),
down, mlp_post_norm. parameter-golf's block adds attn_scale, mlp_scale, resid_mix, q_gain.
Names are without their ending; `.weight` and `.bias` are added where they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Names:
    prefix: str
    embed: str
    head: str
    final_norm: str
    block: str
    """Before a role's own name; {i} is the number of the block."""
    roles: Mapping[str, str]
    positions: str = ""
    transposed: bool = False
    """Trunk matrices are stored [in, out]: GPT-2's Conv1D."""
    qkv_by_head: bool = False
    """The fused qkv goes head by head (q, k, v of head 0, then of head 1, ...), not q, then k, then v."""
    paired_rotary: bool = False
    """Rows of q and k stand so that rotary pairs are neighbours: llama.cpp's order for the llama family."""

    def of(self, role: str, i: int) -> str:
        return self.prefix + self.block.format(i=i) + self.roles[role]


_LLAMA = Names(
    prefix="model.",
    embed="embed_tokens.weight",
    head="lm_head.weight",
    final_norm="norm",
    block="layers.{i}.",
    roles={
        "attn_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
        "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    },
)
_SANDWICH = replace(
    _LLAMA,
    roles={
        **_LLAMA.roles,
        "attn_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
)
_PHI3 = replace(
    _LLAMA,
    roles={
        "attn_norm": "input_layernorm",
        "qkv": "self_attn.qkv_proj",
        "o": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "gate_up": "mlp.gate_up_proj",
        "down": "mlp.down_proj",
    },
)
_GPT2 = Names(
    prefix="transformer.",
    embed="wte.weight",
    head="lm_head.weight",
    final_norm="ln_f",
    block="h.{i}.",
    roles={
        "attn_norm": "ln_1",
        "qkv": "attn.c_attn",
        "o": "attn.c_proj",
        "mlp_norm": "ln_2",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    },
    positions="wpe.weight",
    transposed=True,
)
_GPT_NEOX = Names(
    prefix="gpt_neox.",
    embed="embed_in.weight",
    head="embed_out.weight",
    final_norm="final_layer_norm",
    block="layers.{i}.",
    roles={
        "attn_norm": "input_layernorm",
        "qkv": "attention.query_key_value",
        "o": "attention.dense",
        "mlp_norm": "post_attention_layernorm",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
    qkv_by_head=True,
)
GOLF = Names(
    prefix="",
    embed="tok_emb.weight",
    head="lm_head.weight",
    final_norm="",
    block="blocks.{i}.",
    roles={
        "q": "attn.c_q",
        "k": "attn.c_k",
        "v": "attn.c_v",
        "o": "attn.proj",
        "q_gain": "attn.q_gain",
        "attn_scale": "attn_scale",
        "mlp_scale": "mlp_scale",
        "resid_mix": "resid_mix",
        "up": "mlp.fc",
        "down": "mlp.proj",
    },
)
_GGUF = Names(
    prefix="",
    embed="token_embd.weight",
    head="output.weight",
    final_norm="output_norm",
    block="blk.{i}.",
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
    },
    positions="position_embd.weight",
)
_GGUF_FUSED_QKV = {role: name for role, name in _GGUF.roles.items() if role not in ("q", "k", "v")}
_GGUF_FUSED_QKV["qkv"] = "attn_qkv"
_GGUF_PHI3 = {role: name for role, name in _GGUF_FUSED_QKV.items() if role not in ("gate", "up")}
_GGUF_PHI3["gate_up"] = "ffn_up"

HUGGING_FACE = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma": _LLAMA,
    "gemma2": _SANDWICH,
    "gemma3_text": _SANDWICH,
    "gpt_neox": _GPT_NEOX,
    "phi3": _PHI3,
    "tiebeam_golf": GOLF,
}
GGUF = {
    "gpt2": replace(_GGUF, roles=_GGUF_FUSED_QKV),
    "llama": replace(_GGUF, paired_rotary=True),
    "qwen2": _GGUF,
    "qwen3": _GGUF,
    "gemma": _GGUF,
    "gemma2": _GGUF,
    "gemma3_text": _GGUF,
    "gpt_neox": replace(_GGUF, roles=_GGUF_FUSED_QKV),
    "phi3": replace(_GGUF, roles=_GGUF_PHI3),
}
# The same model is saved bare, as a language model, or inside a multimodal one.
_PREFIXES = ("", "model.", "model.language_model.", "language_model.model.", "language_model.")


def names_for(family: str, format: str, stored: Collection[str]) -> Names:
    """The names of `family`, with the prefix that this file's own block 0 carries."""
    names = (GGUF if format == "gguf" else HUGGING_FACE)[family]
    probe = names.block.format(i=0) + names.roles["o"] + ".weight"
    found = next((p for p in (names.prefix, *_PREFIXES) if p + probe in stored), names.prefix)
    return replace(names, prefix=found)
