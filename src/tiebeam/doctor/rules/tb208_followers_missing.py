"""TB208: declared untied, but tensors that the tie stood for are not stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import matrix, write_llama
from tiebeam.doctor.fix import WRITE_FOLLOWERS, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.families.disk_names import followers
from tiebeam.families.registry import lookup

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    architecture, embed = lookup(model.checkpoint.architecture), model.pair.embed
    if not model.declares or model.pair.declared is not False or architecture is None or model.pair.head is None:
        return
    if architecture.flag == "forced":
        return  # tied whatever the flag says
    stored = model.checkpoint.tensors.keys()
    missing = [name for name in followers(architecture, embed.name if embed else None, stored) if name not in stored]
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        yield Evidence(f"{model.pair.declared_by} is untied; {' and '.join(missing)} {verb} not stored")


def fix(model: ExaminedCheckpoint) -> Repair:
    return WRITE_FOLLOWERS


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Store each as a copy of the tensor that it was tied to", at.fix),
        Step("If they were trained untied, they are lost: find the file that holds them"),
    )


def example(directory: Path) -> Path:
    """A BART whose flag was set to false, with a head, without the tables of encoder and decoder."""
    import numpy as np

    norm = {f"model.{part}.layernorm_embedding.weight": np.ones(8, np.float32) for part in ("encoder", "decoder")}
    tensors = {"model.shared.weight": matrix(0), "lm_head.weight": matrix(1), **norm}
    classes = ["BartForConditionalGeneration"]
    return write_llama(
        directory, tensors, model_type="bart", architectures=classes, d_model=8, tie_word_embeddings=False
    )


RULE = Rule(
    code="TB208",
    severity=Severity.ERROR,
    title="declared untied, but tensors that the tie stood for are not stored",
    symptoms="An encoder-decoder writes noise after it was untied; transformers 5 prints MISSING for "
    "encoder.embed_tokens and decoder.embed_tokens. A BERT loses the bias of its head.",
    cause="The flag ties more than embedding and head: the tables of encoder and decoder (BART, M2M-100, Pegasus), the "
    "two names of the head bias (BERT, RoBERTa). Something set it to false and wrote the head alone, so "
    "transformers 5 initializes the others at random.",
    detection="The config declares untied, a head is stored, and a tensor that transformers 5 ties for this type "
    "while the flag is true is not stored.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
)
