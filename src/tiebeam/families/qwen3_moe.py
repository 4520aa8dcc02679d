"""Qwen 3 MoE: Qwen 3 with a mixture of experts in place of the MLP, in all or every n-th layer."""

from __future__ import annotations

from dataclasses import replace

from tiebeam.families import gguf, llama
from tiebeam.families.config_fields import SLIDING, Fields, all_full
from tiebeam.families.family import Family, Gguf
from tiebeam.families.spec import Experts, Spec

NAMES = replace(
    llama.NAMES,
    roles={
        **llama.NAMES.roles,
        "router": "mlp.gate",
        "expert_gate": "mlp.experts.{j}.gate_proj",
        "expert_up": "mlp.experts.{j}.up_proj",
        "expert_down": "mlp.experts.{j}.down_proj",
    },
)
DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
}
GGUF_KEYS = {
    **gguf.KEYS,
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}


def spec(f: Fields) -> Spec:
    slides = f.flag("use_sliding_window") and f.get("sliding_window") is not None
    base = llama.spec(f, [SLIDING] * f.layers() if slides else all_full(f))
    experts = Experts(
        count=f.first("num_local_experts", "num_experts"),
        per_token=f.count("num_experts_per_tok"),
        mlp=f.count("moe_intermediate_size"),
        normalize=f.flag("norm_topk_prob"),
    )
    dense, step = f.integers("mlp_only_layers"), f.count("decoder_sparse_step")
    layers = tuple(
        layer if i in dense or (i + 1) % step else replace(layer, experts=experts)
        for i, layer in enumerate(base.layers)
    )
    return replace(base, layers=layers, qk_norm="head")


FAMILIES = (
    Family(
        model_type="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        defaults=DEFAULTS,
        names=NAMES,
        gguf=Gguf(
            "qwen3moe",
            gguf.NAMES,
            GGUF_KEYS,
            biases=("attention_bias",),
            experts=True,
            complete=lambda config: {"norm_topk_prob": True},  # in llama.cpp's code
        ),
        spec=spec,
    ),
)
