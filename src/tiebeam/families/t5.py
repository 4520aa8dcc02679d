"""T5, mT5 and umT5: parameter count and logit scale. Encoder and decoder, relative positions, RMSNorm, no biases."""

from __future__ import annotations

from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family
from tiebeam.families.spec import Scales


def t5_scales(f: Fields) -> Scales:
    """The tie itself is always on; the flag in config.json only decides whether the decoder output is scaled."""
    return Scales(logits=f.count("d_model") ** -0.5) if f.flag("tie_word_embeddings") else Scales()


def umt5_scales(f: Fields) -> Scales:
    return Scales(logits=f.count("d_model") ** -0.5)


def parameters(f: Fields) -> int:
    D, heads, model_type = f.count("d_model"), f.count("num_heads"), f.text("model_type")
    encoders = f.layers("num_layers")
    decoders = f.count_or("num_decoder_layers", encoders)
    attention = 4 * D * heads * f.count("d_kv") + D  # with its norm
    matrices = 3 if str(f.get("feed_forward_proj")).startswith("gated-") else 2
    mlp = matrices * D * f.count("d_ff") + D
    # umT5 has a table of relative positions in every layer, T5 in the first of each stack.
    tables = encoders + decoders if model_type == "umt5" else 2
    positions = tables * f.count("relative_attention_num_buckets") * heads
    return encoders * (attention + mlp) + decoders * (2 * attention + mlp) + positions + 2 * D


_DEFAULTS = {
    "relative_attention_num_buckets": 32,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": True,
}

FAMILIES = (
    Family(
        "t5",
        "T5ForConditionalGeneration",
        defaults={**_DEFAULTS, "feed_forward_proj": "relu"},
        scales=t5_scales,
        non_embedding=parameters,
    ),
    Family("mt5", "MT5ForConditionalGeneration", defaults=_DEFAULTS, non_embedding=parameters),
    Family("umt5", "UMT5ForConditionalGeneration", defaults=_DEFAULTS, scales=umt5_scales, non_embedding=parameters),
)
