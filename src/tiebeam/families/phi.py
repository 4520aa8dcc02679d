"""Phi 1 and 2 (parameter count only) and Phi 3 and 4: Llama with a fused qkv, a fused gate and up, and longrope."""

from __future__ import annotations

from dataclasses import replace

from tiebeam.families import gguf, llama
from tiebeam.families.config_fields import FULL, SLIDING, Fields, all_full, read_rope
from tiebeam.families.family import Family, Gguf
from tiebeam.families.parameter_count import attention, norm, two_layer_mlp
from tiebeam.families.spec import Spec

NAMES = replace(
    llama.NAMES,
    roles={
        "attn_norm": "input_layernorm",
        "qkv": "self_attn.qkv_proj",
        "o": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "gate_up": "mlp.gate_up_proj",
        "down": "mlp.down_proj",
    },
)
_ROLES = gguf.FUSED_QKV_NAMES.roles
GGUF_NAMES = replace(
    gguf.FUSED_QKV_NAMES,
    roles={**{role: name for role, name in _ROLES.items() if role not in ("gate", "up")}, "gate_up": "ffn_up"},
)
_OLDER_ROPE_NAMES = {"su": "longrope", "yarn": "longrope"}


def phi3_spec(f: Fields) -> Spec:
    """Every layer slides, if any does."""
    kinds = all_full(f) if f.get("sliding_window") is None else [SLIDING] * f.layers()
    rope = read_rope(f, llama.head_dim_of(f), aliases=_OLDER_ROPE_NAMES)
    return llama.spec(f, kinds, dict.fromkeys((FULL, SLIDING), rope))


def phi_parameters(f: Fields) -> int:
    D = f.count("hidden_size")
    head_dim = D // f.count("num_attention_heads")
    layer = attention(f, head_dim, bias=True) + two_layer_mlp(D, f.count("intermediate_size"), bias=True) + norm(D)
    layer += 2 * norm(head_dim) if f.flag("qk_layernorm") else 0
    return f.layers() * layer + norm(D)


FAMILIES = (
    Family("phi", "PhiForCausalLM", non_embedding=phi_parameters),
    Family(
        model_type="phi3",
        architecture="Phi3ForCausalLM",
        defaults={
            **llama.DEFAULTS,
            "rms_norm_eps": 1e-05,
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
        },
        names=NAMES,
        gguf=Gguf("phi3", GGUF_NAMES, keys={**gguf.KEYS, "sliding_window": "attention.sliding_window"}),
        spec=phi3_spec,
    ),
)
