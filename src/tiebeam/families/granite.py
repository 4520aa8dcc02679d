"""Granite: Llama with multipliers at the embedding, the attention scores, the residual stream and the logits."""

from __future__ import annotations

from dataclasses import replace

from tiebeam.families import gguf, llama
from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family, Gguf
from tiebeam.families.spec import Scales, Spec

GGUF_KEYS = {
    **gguf.KEYS,
    "embedding_multiplier": "embedding_scale",
    "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}


def scales(f: Fields) -> Scales:
    """Logits are divided by `logits_scaling`."""
    return Scales(input=f.scale("embedding_multiplier"), logits=1 / f.scale("logits_scaling"))


def spec(f: Fields) -> Spec:
    base = llama.spec(f, scale=f.number("attention_multiplier"))
    return replace(base, residual_scale=f.number("residual_multiplier"), scales=scales(f))


FAMILIES = (
    Family(
        model_type="granite",
        architecture="GraniteForCausalLM",
        defaults={
            **llama.DEFAULTS,
            "embedding_multiplier": 1.0,
            "attention_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
        names=llama.NAMES,
        gguf=Gguf("granite", gguf.PAIRED_ROTARY_NAMES, GGUF_KEYS),
        spec=spec,
        scales=scales,
    ),
)
