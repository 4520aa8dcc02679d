"""OLMo 2: Llama with norms after attention and MLP instead of before, and norms of the whole q and k projections."""

from __future__ import annotations

from dataclasses import replace

from tiebeam.families import gguf, llama
from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family, Gguf
from tiebeam.families.spec import Spec

NAMES = replace(
    llama.NAMES,
    roles={
        **{role: name for role, name in llama.NAMES.roles.items() if role not in ("attn_norm", "mlp_norm")},
        "attn_post_norm": "post_attention_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
)


def spec(f: Fields) -> Spec:
    return replace(llama.spec(f), pre_norms=False, post_norms=True, qk_norm="projection")


FAMILIES = (
    Family(
        model_type="olmo2",
        architecture="Olmo2ForCausalLM",
        defaults={**llama.DEFAULTS, "vocab_size": 50304, "rms_norm_eps": 1e-05},
        names=NAMES,
        gguf=Gguf("olmo2", gguf.NAMES, gguf.KEYS, biases=("attention_bias",)),
        spec=spec,
    ),
)
