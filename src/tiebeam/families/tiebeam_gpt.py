"""Qwen3 with the options that `tiebeam train` has and Qwen3 has not: softcap, norm after the embedding, bigram table.

The tensors are Qwen3's. A bigram table, a bridge and the two maps of a factorized embedding are stored beside them.
"""

from __future__ import annotations

from dataclasses import replace

from tiebeam.families import llama, qwen
from tiebeam.families.bigram_hash import bigram_rows
from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family
from tiebeam.families.spec import Scales, Spec


def scales(f: Fields) -> Scales:
    return Scales(softcap=f.number_or_none("logit_softcap"))


def spec(f: Fields) -> Spec:
    return replace(
        qwen.qwen3_spec(f),
        family="tiebeam_gpt",
        scales=scales(f),
        table_maps=True,
        embed_norm=f.flag("embed_norm"),
        bigram_rows=bigram_rows(f),
    )


FAMILIES = (
    Family(
        model_type="tiebeam_gpt",
        defaults={**qwen.DEFAULTS, "head_dim": 128, "logit_softcap": None, "embed_norm": False},
        names=llama.NAMES,
        spec=spec,
        scales=scales,
    ),
)
