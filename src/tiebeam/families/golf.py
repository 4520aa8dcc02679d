"""parameter-golf, written by `tiebeam train --arch golf`: norms without weights, a residual mix, U-Net skips."""

from __future__ import annotations

from dataclasses import replace

from tiebeam.families.bigram_hash import bigram_rows
from tiebeam.families.config_fields import Fields, divide_heads, read_rope
from tiebeam.families.family import Family, TensorNames
from tiebeam.families.spec import Layer, Scales, Spec

NAMES = TensorNames(
    prefix="",
    embed="tok_emb.weight",
    head="lm_head.weight",
    final_norm="",
    layer="blocks.{i}.",
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


def scales(f: Fields) -> Scales:
    return Scales(softcap=f.number_or_none("logit_softcap"))


def spec(f: Fields) -> Spec:
    dim, heads = f.count("hidden_size"), f.count("num_attention_heads")
    head_dim = divide_heads(f, dim, heads)
    rope = replace(read_rope(f, head_dim), backwards=True)
    return Spec(
        family="tiebeam_golf",
        vocab=f.count("vocab_size"),
        dim=dim,
        heads=heads,
        kv_heads=f.count_or("num_key_value_heads", heads),
        head_dim=head_dim,
        mlp=f.count("intermediate_size"),
        context=f.count("max_position_embeddings"),
        layers=(Layer(rope=rope, scale=head_dim**-0.5),) * f.layers(),
        eps=f.number("rms_norm_eps"),
        activation="relu2",
        gated=False,
        qk_norm="head",
        scales=scales(f),
        table_maps=True,
        bigram_rows=bigram_rows(f),
        golf=True,
    )


FAMILIES = (
    Family(
        model_type="tiebeam_golf",
        defaults={
            "rms_norm_eps": 2.0**-23,  # what torch's rms_norm uses when none is given
            "rope_theta": 10_000.0,
            "logit_softcap": 30.0,
        },
        names=NAMES,
        spec=spec,
        scales=scales,
    ),
)
