"""TB807: the index lists tensors that no file stores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.doctor.fix import DROP_STALE, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    stale = model.checkpoint.stale
    if stale:
        more = f" and {len(stale) - 1:,} more" if len(stale) > 1 else ""
        yield Evidence(f"the index lists {stale[0]}{more}, which no file stores")


def fix(model: ExaminedCheckpoint) -> Repair | None:
    return DROP_STALE if model.checkpoint.format == "safetensors" else None


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("If the tensors belong to the model, a shard is damaged: download it again"),
        Step("Otherwise write the index anew, without them", at.fix),
    )


def example(directory: Path) -> Path:
    where = write_llama(directory, {EMBED: matrix(0)}, tie_word_embeddings=True)
    shard = "model-00001-of-00001.safetensors"
    (where / "model.safetensors").rename(where / shard)
    weight_map = dict.fromkeys((EMBED, "model.norm.weight", HEAD), shard)
    (where / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return where


RULE = Rule(
    code="TB807",
    severity=Severity.NOTE,
    title="the index lists tensors that no file stores",
    symptoms="transformers and mlx-lm load it. llama.cpp's converter stops: Missing or incomplete model files, Missing "
    "tensors.",
    cause="A tensor was dropped from a shard (the head of a tied model, an old buffer) and the index was not "
    "rewritten.",
    detection="Names in the weight_map of the index are compared with the headers of all shards.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
)
