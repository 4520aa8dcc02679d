"""TB601: one matrix of a tied pair is quantized and the other is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import DIM, EMBED, VOCAB, Tensors, matrix, write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    pair, packed = model.pair, model.report.packed
    if not model.is_gguf and pair.declared and len(packed) == 1 and pair.embed and pair.head:
        which = "head" if "head" in packed else "embedding"
        yield Evidence(f"only the {which} is packed; {pair.declared_by} is tied")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Quantize again with lm_head excluded"),
        Step("If the quantized head is meant to stay, declare the pair untied", f"tiebeam untie {at.model} {at.out}"),
    )


def example(directory: Path) -> Path:
    import numpy as np

    packed: Tensors = {
        "lm_head.qweight": np.zeros((DIM // 8, VOCAB), np.int32),
        "lm_head.scales": np.ones((1, VOCAB), np.float16),
    }
    return write_llama(directory, {EMBED: matrix(0), **packed}, tie_word_embeddings=True)


RULE = Rule(
    code="TB601",
    severity=Severity.WARNING,
    title="one matrix of a tied pair is quantized and the other is not",
    symptoms="The loader fails on unexpected packed names, or the output is garbled by the quantized head.",
    cause="A quantizer packed the head of a tied model as if it were a layer of its own.",
    detection="The config declares a tie, both matrices are stored, and exactly one of them is packed.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("vllm#45544", "sglang#35228", "transformers#37905"),
)
