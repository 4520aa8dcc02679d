"""Cohere 2 (Command R7B, Aya): one LayerNorm without bias, then attention and MLP in parallel; scaled logits.

Three of four layers slide and have rotary positions on neighbouring pairs; the fourth sees everything and has no
positions at all.
"""

from __future__ import annotations

from dataclasses import replace

from tiebeam.families import gguf, llama
from tiebeam.families.cohere import scales
from tiebeam.families.config_fields import FULL, SLIDING, Fields, layer_kinds, read_rope
from tiebeam.families.family import Family, Gguf
from tiebeam.families.spec import Spec

NAMES = replace(
    llama.NAMES,
    roles={role: name for role, name in llama.NAMES.roles.items() if role not in ("mlp_norm", "q_norm", "k_norm")},
    paired_rotary=True,
)
DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-05,
    "logit_scale": 0.0625,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,  # llama.cpp has the same number in its code
}
GGUF_KEYS = {
    **gguf.KEYS,
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "sliding_window": "attention.sliding_window",
    "logit_scale": "logit_scale",
}


def spec(f: Fields) -> Spec:
    every = f.count("sliding_window_pattern")
    kinds = layer_kinds(f, lambda i: (i + 1) % every != 0)
    rope = {SLIDING: read_rope(f, llama.head_dim_of(f)), FULL: None}
    return replace(
        llama.spec(f, kinds, rope),
        norm="layer",
        eps=f.number("layer_norm_eps"),
        parallel=True,
        one_norm=True,
        scales=scales(f),
    )


FAMILIES = (
    Family(
        model_type="cohere2",
        architecture="Cohere2ForCausalLM",
        defaults=DEFAULTS,
        names=NAMES,
        # The converter leaves q and k as they are: llama.cpp rotates neighbouring pairs, as the model does.
        gguf=Gguf("cohere2", gguf.PAIRED_ROTARY_NAMES, GGUF_KEYS, biases=("attention_bias",)),
        spec=spec,
        scales=scales,
    ),
)
