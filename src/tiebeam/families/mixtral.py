"""Mixtral: Mistral with a mixture of experts in place of every MLP. GGUF calls it llama, with experts."""

from __future__ import annotations

from dataclasses import replace

from tiebeam.families import gguf, llama
from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family, Gguf
from tiebeam.families.spec import Experts, Spec

NAMES = replace(
    llama.NAMES,
    roles={
        **{role: name for role, name in llama.NAMES.roles.items() if role not in ("gate", "up", "down")},
        "router": "block_sparse_moe.gate",
        "expert_gate": "block_sparse_moe.experts.{j}.w1",
        "expert_up": "block_sparse_moe.experts.{j}.w3",
        "expert_down": "block_sparse_moe.experts.{j}.w2",
    },
)
GGUF_KEYS = {**gguf.KEYS, "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}


def spec(f: Fields) -> Spec:
    base = llama.mistral_spec(f)
    experts = Experts(f.first("num_local_experts", "num_experts"), f.count("num_experts_per_tok"), base.mlp)
    return replace(base, layers=tuple(replace(layer, experts=experts) for layer in base.layers))


FAMILIES = (
    Family(
        model_type="mixtral",
        architecture="MixtralForCausalLM",
        defaults={
            **llama.DEFAULTS,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-05,
            "rope_theta": 1_000_000.0,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        names=NAMES,
        gguf=Gguf("llama", gguf.PAIRED_ROTARY_NAMES, GGUF_KEYS, biases=(), experts=True),
        spec=spec,
    ),
)
